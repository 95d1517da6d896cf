"""Where credentials come from, and that they are in no text."""

import importlib.util
from pathlib import Path

import pytest

from ckptstore.objects import asked
from ckptstore.objects.errors import DeniedError, StoreError, UnreachableError
from ckptstore.objects.settings import settings
from ckptstore.objects.tiers import open_tier


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = FILE\naws_secret_access_key = of%file\n"
        "[far]\naws_access_key_id = FAR\naws_secret_access_key = of-far\naws_session_token = token\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-1\n[profile far]\nregion = cn-2\nendpoint_url = https://obs.example/\n"
    )
    return tmp_path


def test_the_environment_counts_more_than_files(home: Path) -> None:
    env = {"HOME": str(home), "AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "of-env", "AWS_REGION": "r"}
    found = settings({**env, "AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b/"})
    assert (found.key, found.secret, found.token, found.region, found.endpoint) == (
        "ENV",
        "of-env",
        "",
        "r",
        "http://b",
    )
    assert "of-env" not in repr(found)


def test_a_profile_is_read(home: Path) -> None:
    found = settings({"HOME": str(home)})
    assert (found.key, found.secret, found.region, found.endpoint) == ("FILE", "of%file", "eu-1", "")
    found = settings({"HOME": str(home), "AWS_PROFILE": "far", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert (found.key, found.token, found.region, found.endpoint) == ("FAR", "token", "cn-2", "https://obs.example")
    assert found.is_in_host


def test_half_a_pair_in_the_environment_is_not_mixed_with_the_other_half_of_a_file(home: Path) -> None:
    found = settings({"HOME": str(home), "AWS_ACCESS_KEY_ID": "ENV"})
    assert (found.key, found.secret) == ("FILE", "of%file")


def test_a_file_that_is_none_is_named_without_its_lines(home: Path) -> None:
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = secret\n")
    with pytest.raises(DeniedError, match="credentials cannot be read") as told:
        settings({"HOME": str(home)})
    assert "= secret" not in str(told.value)
    assert told.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ACCESS_KEY_ID", "ENV\n"),
        ("AWS_ACCESS_KEY_ID", "schlüssel"),
        ("AWS_SECRET_ACCESS_KEY", "of-env\n"),
        ("AWS_SESSION_TOKEN", "of-\r\nenv"),
        ("AWS_REGION", "eu-1\n"),
    ],
)
def test_what_no_header_can_hold_is_named_without_its_value(home: Path, name: str, value: str) -> None:
    """A key of a Kubernetes secret that was made by `echo`: doctor ended with a traceback that showed the token."""
    env = {"HOME": str(home), "AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "of-env"}
    with pytest.raises(DeniedError, match=f"^{name} has a line break") as told:
        settings({**env, name: value})
    assert value.strip() not in str(told.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://host:9x", "http://[::1", "host:9000", "https://", "http://host:99999", "https://me:secret@host"),
        *("https://host/a path", "https://hóst", "https://host/?key=secret", "https://host\t"),
    ],
)
def test_an_endpoint_that_is_none_is_refused(home: Path, endpoint: str) -> None:
    with pytest.raises(UnreachableError, match="^AWS_ENDPOINT_URL, or endpoint_url in ~/.aws, is not the URL") as told:
        settings({"HOME": str(home), "AWS_ENDPOINT_URL": endpoint})
    assert "secret" not in str(told.value)


def test_a_bucket_in_the_host_is_in_that_of_aws_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the rules of `s3.eu-1.amazonaws.com` were asked for: of no bucket."""
    asked_of: list[str] = []

    def connect(host: str, **_: object) -> None:
        asked_of.append(host)
        raise StopIteration

    monkeypatch.setattr("http.client.HTTPSConnection", connect)
    monkeypatch.setenv("no_proxy", "*")
    for in_host in ("true", "false"):
        with pytest.raises(StopIteration):
            found = settings({"HOME": "/none", "AWS_REGION": "eu-1", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": in_host})
            asked.ask(found, "bucket", "GET", query={"lifecycle": ""})
    assert asked_of == ["bucket.s3.eu-1.amazonaws.com", "s3.eu-1.amazonaws.com"]


@pytest.mark.parametrize(("near", "is_proxied"), [("10.0.0.0/8, x.y", False), ("10.9.0.0/16,10.1.2.4", True)])
def test_no_proxy_takes_networks_as_obstore_does(
    monkeypatch: pytest.MonkeyPatch, near: str, *, is_proxied: bool
) -> None:
    """Python compares names alone: a store in the cluster was asked for through the proxy of the outside."""
    asked_of: list[str] = []

    def connect(host: str, **_: object) -> None:
        asked_of.append(host)
        raise StopIteration

    monkeypatch.setattr("http.client.HTTPConnection", connect)
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", near)
    with pytest.raises(StopIteration):
        asked.ask(settings({"HOME": "/none", "AWS_ENDPOINT_URL": "http://10.1.2.3:9000"}), "bucket", "GET")
    assert asked_of == ["proxy.invalid:3128" if is_proxied else "10.1.2.3:9000"]


@pytest.mark.skipif(importlib.util.find_spec("obstore") is not None, reason="its package is here")
def test_without_the_package_it_is_named() -> None:
    with pytest.raises(StoreError, match=r"pip install 'ckptstore\[objects\]'"):
        open_tier("S3://bucket/prefix")
