"""What a command prints, which the server answers too."""

import json
from typing import Any

from click.testing import CliRunner

from ckptstore.api import Catalog
from ckptstore.cli.main import cli


def printed(catalog: Catalog, *command: str) -> Any:
    url = catalog.database.url.render_as_string(hide_password=False)
    done = CliRunner().invoke(cli, ["--db", url, *command, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)
