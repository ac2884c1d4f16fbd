"""The project's images: built with buildah, carried into the cluster's containerd or pushed to a registry.

`add_parser` and `run` are the `images` command of `python3 -m devcluster`.
"""

import argparse
import os
from pathlib import Path

from ..report import DevclusterError
from ..settings import IMAGE_TAG
from . import sbom
from .building import NAMES, build, update_lists
from .loading import load
from .pushing import push

__all__ = ["NAMES", "add_parser", "build", "load", "push", "run"]


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("images", help="build the project's images, load them into the cluster or push them")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("build", "build what changed"),
        ("load", "build what changed and import it into the cluster"),
        ("push", "build what changed and push it to $REGISTRY"),
    ):
        command = actions.add_parser(action, help=text)
        command.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    actions.choices["push"].add_argument("--tag", default=IMAGE_TAG, help=f"default: {IMAGE_TAG}")
    bills = actions.add_parser("sbom", help="build what changed and write each image's bill of materials (CycloneDX)")
    bills.add_argument("folder", metavar="FOLDER")
    bills.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    actions.add_parser(
        "servers",
        help="write the lists of bundled servers and agents anew, after the lock of NeMo Gym changed",
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.action == "servers":
        update_lists()
        return
    names = checked_names(arguments.names)
    if arguments.action == "push":
        registry = os.environ.get("REGISTRY")
        if not registry:
            raise DevclusterError("REGISTRY is not set; say where the images go: REGISTRY=registry.example.org/team")
        build(names)
        push(names, registry, arguments.tag)
        return
    build(names)
    if arguments.action == "load":
        load(names)
    if arguments.action == "sbom":
        sbom.write(names, Path(arguments.folder))


def checked_names(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise DevclusterError(f"no image is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return list(names or NAMES)
