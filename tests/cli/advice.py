"""The commands that messages print, to be run as they stand."""

import re
import shlex


def advised(message: str) -> list[str]:
    """The arguments of the first command that a message names."""
    found = re.search(r"ckptstore ((?:(?! brings|; |, |\)|$).)+)", message)
    assert found is not None, message
    return shlex.split(found[1])
