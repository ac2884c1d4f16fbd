"""Rules of our own, and the removal of those that kube-proxy and kube-router leave behind."""

import re
import subprocess

from . import packages, report
from .settings import POD_BRIDGE

TABLES = ("filter", "nat", "mangle")
FAMILIES = ("iptables", "ip6tables")
COMMENT = "nhx-devcluster"
CHAIN = re.compile(r"^:(KUBE-\S+)")
# In the kernel's own chains: jumps to theirs, rules that name them, and kube-router's verdict by its mark.
FOREIGN_RULE = re.compile(rf"^-A (?!KUBE-)\S+ .*(KUBE-|kube-router|0x20000/0x20000|{COMMENT})")
SETS = re.compile(r"^(inet6:)?(KUBE-|kube-router-)")


def _run(*argv: str, text: str | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(argv, input=text, capture_output=True, text=True, env={"PATH": packages.SYSTEM_PATH})


def filters_pods() -> bool:
    """Whether kube-router has put its verdict at the end of the forwarding chain."""
    return "explicitly ACCEPT" in _run("iptables", "-w", "-S", "KUBE-ROUTER-FORWARD").stdout


def drop_ipv6_of_pods() -> None:
    """Pods have IPv6 link-local addresses that no rule of kube-router covers."""
    for chain in ("INPUT", "FORWARD"):
        rule = [chain, "-i", POD_BRIDGE, "-m", "comment", "--comment", COMMENT, "-j", "DROP"]
        if _run("ip6tables", "-w", "-C", *rule).returncode:
            done = _run("ip6tables", "-w", "-I", *rule)
            if done.returncode:
                raise report.DevclusterError(f"cannot keep pods from IPv6 by ip6tables: {done.stderr.strip()}")


def removal(saved: str, table: str) -> str:
    """The input of iptables-restore that undoes the cluster's part of one saved table; empty if there is none."""
    lines = saved.splitlines()
    chains = [match[1] for line in lines if (match := CHAIN.match(line))]
    rules = [line.replace("-A ", "-D ", 1) for line in lines if FOREIGN_RULE.match(line)]
    if not chains and not rules:
        return ""
    emptied = [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
    return "\n".join([f"*{table}", *rules, *emptied, "COMMIT", ""])


def remove() -> None:
    for family in FAMILIES:
        for table in TABLES:
            text = removal(_run(f"{family}-save", "-t", table).stdout, table)
            if not text:
                continue
            done = _run(f"{family}-restore", "--noflush", "--wait=10", text=text)
            if done.returncode:
                raise report.DevclusterError(
                    f"{family}-restore could not remove the cluster's rules: {done.stderr.strip()}"
                )
    for name in _run("ipset", "list", "-name").stdout.split():
        if SETS.match(name):
            _run("ipset", "destroy", name)
