"""The command line: python3 -m devcluster up|down|build|status|kubeconfig|env|images|demo."""

import argparse
import sys

from . import cluster, demo, modules, paths, report, status


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python3 -m devcluster", description="A real single-node Kubernetes cluster on this machine."
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="build what is missing, start or repair the cluster, wait until it is ready")
    down = commands.add_parser("down", help="stop it; imported images stay, API objects and volumes go")
    down.add_argument("--purge", action="store_true", help="remove images, certificates and logs as well")
    build = commands.add_parser("build", help="build and start nothing: all programs and images, or programs by name")
    names = ["all", *(module.name for module in modules.MODULES)]
    build.add_argument("module", nargs="+", choices=names, metavar="PROGRAM", help=", ".join(names))
    commands.add_parser("status", help="what runs, and where its logs are; exit code 1 unless the node is ready")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    commands.add_parser("env", help='print shell exports: eval "$(python3 -m devcluster env)"')
    _images().add_parser(commands)
    demo.add_parser(commands)
    return whole


def _images():
    from . import images  # it imports buildah's side, which `up` does without

    return images


def main() -> int:
    arguments = parser().parse_args()
    try:
        return run(arguments)
    except report.DevclusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command again to continue", file=sys.stderr)
        return 130


def run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "up":
            cluster.up()
        case "down":
            cluster.down(arguments.purge)
        case "build":
            if "all" in arguments.module:
                cluster.provide_programs_and_images()
            modules.build_missing(arguments.module)
        case "status":
            return 0 if status.show() else 1
        case "kubeconfig":
            print(paths.kubeconfig())
        case "env":
            print("\n".join(status.environment()))
        case "images":
            _images().run(arguments)
        case "demo":
            demo.run(arguments)
    return 0
