"""The server and the credentials of a bucket, from the usual environment and files. They are never stored or shown."""

from __future__ import annotations

import re
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ckptstore.objects.errors import DeniedError, UnreachableError
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Mapping

_REGION = "us-east-1"
_PLAIN = re.compile(r'[!"$->A-~]+')  # ASCII without spaces, # ? and @


@dataclass(frozen=True)
class Settings:
    """The server and the credentials of a bucket. `key` is empty if a machine's role or a token file has it."""

    endpoint: str  # without a slash at its end; empty: the endpoint of AWS for the region
    region: str
    is_in_host: bool  # the host name of the endpoint contains the bucket's name
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from the environment, else from the profile in `~/.aws`.

    Raises `DeniedError` for a file in another format, and for keys that no request can hold; `UnreachableError` for an
    endpoint that is not the URL of a server.
    """
    env = os.environ if environment is None else environment
    profile = _profile(env)

    def first(*names: str, of_profile: str = "") -> str:
        return next((env[name] for name in names if env.get(name)), profile.get(of_profile, ""))

    is_whole = bool(env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"))
    key = env.get("AWS_ACCESS_KEY_ID", "") if is_whole else profile.get("aws_access_key_id", "")
    secret = env.get("AWS_SECRET_ACCESS_KEY", "") if is_whole else profile.get("aws_secret_access_key", "")
    token = env.get("AWS_SESSION_TOKEN", "") if is_whole else profile.get("aws_session_token", "")
    endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", of_profile="endpoint_url")
    in_host = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes")
    region = first("AWS_REGION", "AWS_DEFAULT_REGION", of_profile="region") or _REGION
    in_headers = {"AWS_ACCESS_KEY_ID": key, "AWS_SESSION_TOKEN": token, "AWS_REGION": region}
    for name, value in {**in_headers, "AWS_SECRET_ACCESS_KEY": secret}.items():
        if not value.isprintable() or (name in in_headers and not value.isascii()):
            hint = "set it again; a file that it was read from may end in a line break"
            raise DeniedError(f"{name} has a line break, or another character that no request can hold", hint)
    if endpoint and not _is_endpoint(endpoint):
        message = "AWS_ENDPOINT_URL, or endpoint_url in ~/.aws, is not the URL of a server"
        raise UnreachableError(message, "give it as https://HOST or https://HOST:PORT")
    return Settings(endpoint.rstrip("/"), region, in_host, key, secret, token)


def _is_endpoint(url: str) -> bool:
    if not _PLAIN.fullmatch(url):  # obstore ends the process on a space, and http.client quotes a password
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0  # reading it may raise
    except ValueError:
        return False


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of the chosen profile in the two files. Those of the credentials file take precedence."""
    name = env.get("AWS_PROFILE") or "default"
    home = Path(env.get("HOME") or Path.home(), ".aws")
    told: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = env.get(variable) or str(home / usual)
        read = ConfigParser(interpolation=None)
        try:
            read.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeError):
            # The parser's message may quote a line with a secret.
            raise DeniedError(f"{path} cannot be read as a file of AWS settings", "mend it, or set AWS_*") from None
        if read.has_section(section):
            told |= dict(read.items(section))
    return told
