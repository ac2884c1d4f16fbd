"""How lists of hosts are written, and what they allow."""

import re

import pytest

from nhx_gym_operator.api.egress import ENTRY, allows, beyond, spells_out

LIST = ["search.example.org", "artifacts.example.internal:8443", "*.wiki.example.org", "10.1.2.3:9000"]


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("search.example.org", 443, True),
        ("search.example.org", 80, True),
        ("search.example.org", 8443, False),
        ("artifacts.example.internal", 8443, True),
        ("artifacts.example.internal", 443, False),
        ("en.wiki.example.org", 443, True),
        ("a.b.wiki.example.org", 443, True),
        ("wiki.example.org", 443, False),
        ("evilwiki.example.org", 443, False),
        ("search.example.org.evil.test", 443, False),
        ("a/b.wiki.example.org", 443, False),
        ("..wiki.example.org", 443, False),
        (f"{'a' * 64}.wiki.example.org", 443, False),
        ("10.1.2.3", 9000, True),
        ("10.1.2.3", 443, False),
        ("", 443, False),
    ],
)
def test_an_entry_allows_its_own_host_and_ports(host: str, port: int, allowed: bool) -> None:
    assert allows(LIST, host, port) is allowed


def test_a_host_is_spelled_out_by_an_entry_of_its_own_only() -> None:
    assert spells_out(LIST, "search.example.org", 443)
    assert not spells_out(LIST, "en.wiki.example.org", 443)


@pytest.mark.parametrize(
    ("asked", "within"),
    [
        ("search.example.org", True),
        ("search.example.org:443", True),
        ("search.example.org:22", False),
        ("artifacts.example.internal", False),
        ("en.wiki.example.org:80", True),
        ("*.wiki.example.org", True),
        ("*.en.wiki.example.org:443", True),
        ("*.example.org", False),
        ("*.search.example.org", False),
    ],
)
def test_a_job_asks_for_no_more_than_its_whole_entry_is_allowed(asked: str, within: bool) -> None:
    assert beyond([asked], LIST) == ([] if within else [asked])


def test_both_ports_may_be_allowed_by_two_entries() -> None:
    assert beyond(["a.example"], ["a.example:80", "a.example:443"]) == []
    assert beyond(["a.example"], ["a.example:80"]) == ["a.example"]


@pytest.mark.parametrize(
    "entry",
    ["*", "*.*", "a.*.example.org", "*:443", "Example.org", "https://example.org", "example.org/x", "example.org:0",
     "example.org:65536", "example.org:", "[::1]:443", "::1", "10.0.0.0/8", "example..org", "-a.example", "a b", "",
     "user@example.org"],
)  # fmt: skip
def test_what_is_no_host_is_no_entry(entry: str) -> None:
    assert not re.search(ENTRY, entry)


@pytest.mark.parametrize("entry", [*LIST, "localhost", "a.example:1", "a.example:65535", "xn--bcher-kva.example"])
def test_what_is_one_is(entry: str) -> None:
    assert re.search(ENTRY, entry)
