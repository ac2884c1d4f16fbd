"""Neighbours over IPv6, from the kernel's own tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from nhx_gym_operator.gym_host import link_local

LOOPBACK = "00000000000000000000000000000001 01 80 10 80       lo"
OWN = "fe80000000000000a8bb00fffe000007 02 40 20 80     eth0"
ZERO = "0" * 32
ROUTE = f"{ZERO} 00 {ZERO} 00 {{hop}} 00000400 00000001 00000000 00000003     eth0"
GATEWAY = ROUTE.format(hop="fe800000000000000000000000000001")


@pytest.fixture
def look(tmp_path: Path):
    def run(addresses: list[str] | None, routes: tuple[str, ...] = (), answers: tuple[str, ...] = ()):
        files = tmp_path / "if_inet6", tmp_path / "ipv6_route"
        for file, lines in zip(files, (addresses, list(routes)), strict=True):
            if lines is not None:
                file.write_text("".join(f"{line}\n" for line in lines))
        return link_local.look(*files, answering=lambda link: list(answers) if link == "eth0" else [])

    return run


def test_a_kernel_without_ipv6_says_so(look):
    assert look(None) == link_local.Neighbours(note="this kernel has no IPv6")


def test_a_pod_whose_interfaces_have_no_link_local_address_says_so(look):
    assert look([LOOPBACK]).note == "no interface has an IPv6 link-local address"


def test_silence_is_not_taken_for_a_neighbour(look):
    found = look([LOOPBACK, OWN], answers=("fe80::a8bb:ff:fe00:7",))
    assert found == link_local.Neighbours(note="no IPv6 link-local neighbour was found"), "one's own answer is none"


def test_neighbours_are_the_next_hop_of_a_route_and_who_answers_an_echo_each_once_with_its_link(look):
    found = look(
        [LOOPBACK, OWN], routes=(GATEWAY, ROUTE.format(hop=ZERO)), answers=("fe80::1", "fe80::2", "2001:db8::1")
    )
    assert found == link_local.Neighbours(("fe80::1%eth0", "fe80::2%eth0"))


def test_no_more_neighbours_are_tried_than_a_round_takes(look):
    assert len(look([OWN], answers=tuple(f"fe80::{number:x}" for number in range(1, 40))).addresses) == link_local.MOST


def test_the_kernels_own_tables_are_read():
    found = link_local.look()
    assert bool(found.addresses) != bool(found.note)
