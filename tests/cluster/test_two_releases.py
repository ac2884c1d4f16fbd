"""Two users without cluster rights, each with a release of the chart in a namespace of their own."""

import asyncio
import base64
from contextlib import contextmanager

import pytest

from cluster.conftest import OperatorThread
from cluster.control_plane import kubeconfig_of, user_token
from cluster.world import DEFINITIONS, World
from nhx_gym_operator.controller.kube import CONFIG_MAPS, JOBS, PODS, SECRETS, Resource
from nhx_gym_operator.controller.settings import KEY_FILE_ENV, SETTINGS_ENV, load_installation
from support.chart import CHART, helm
from support.controller_values import outcome

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
OWN = {
    "crds": {"install": False},
    "rbac": {"runtimeClasses": False},
    "canary": {"enabled": False},
    "sandbox": {"isolation": "ContainerOnly"},
}
"""Values of somebody who may do nothing beyond a namespace."""


class User:
    """Who may do anything in one namespace and nothing elsewhere."""

    def __init__(self, name, world, kubeconfig):
        self.name, self.world = name, world
        self._admin = kubeconfig
        self._path = kubeconfig_of(kubeconfig, name, user_token(name))

    async def get_rights(self):
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        await self.world._post(ROLES, {"metadata": {"name": "own"}, "rules": everything})
        role = {"apiGroup": RBAC, "kind": "Role", "name": "own"}
        subject = {"apiGroup": RBAC, "kind": "User", "name": self.name}
        await self.world._post(BINDINGS, {"metadata": {"name": "own"}, "roleRef": role, "subjects": [subject]})

    def helm(self, *arguments, **values):
        values = {"watchNamespaces": [self.world.namespace], **OWN, **values}
        return helm(*arguments, f"--kubeconfig={self._path}", f"--namespace={self.world.namespace}", values=values)

    def install(self, release):
        done = self.helm("install", release, str(CHART))
        assert done.returncode == 0, done.stderr

    def uninstall(self, release):
        done = helm("uninstall", release, f"--kubeconfig={self._path}", f"--namespace={self.world.namespace}")
        assert done.returncode == 0, done.stderr

    async def operator_of(self, release, folder):
        """As its Deployment would run it: with the release's settings, key and account."""
        api, namespace = self.world.api, self.world.namespace
        name = f"{release}-nhx-gym-operator"
        settings = await api.get(CONFIG_MAPS, namespace, name)
        key = await api.get(SECRETS, namespace, f"{name}-key")
        folder.mkdir()
        (folder / "settings.yaml").write_text(settings["data"]["settings.yaml"])
        (folder / "key").write_bytes(base64.b64decode(key["data"]["key"]))
        environ = {SETTINGS_ENV: str(folder / "settings.yaml"), KEY_FILE_ENV: str(folder / "key")}
        path = f"{api._path(ACCOUNTS, namespace, name)}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await api._request("POST", path, body=body))["status"]["token"]
        kubeconfig = kubeconfig_of(self._admin, f"{namespace}-{release}", token)
        return OperatorThread(str(kubeconfig), load_installation(environ), release)


@contextmanager
def running(process):
    process.start()
    try:
        process.wait_until_ready()
        yield
    finally:
        process.stop()


@pytest.fixture
async def users(world, kubeconfig):
    other = World(world.api, f"{world.namespace}-other")
    await other.create_namespace()
    users = User("alice", world, kubeconfig), User("bob", other, kubeconfig)
    for user in users:
        await user.get_rights()
    # Until the authorizer has heard of it.
    await asyncio.sleep(1)
    return users


@pytest.mark.parametrize(
    ("values", "setting"),
    [({"crds": {"install": True}}, "crds.install=false"), ({"rbac": {}}, "rbac.runtimeClasses=false")],
    ids=["definitions", "cluster roles"],
)
async def test_what_a_user_may_not_is_refused_with_the_value_to_set(users, values, setting):
    done = users[0].helm("install", "one", str(CHART), **values)
    assert done.returncode != 0
    assert setting in done.stderr and "forbidden" in done.stderr


async def test_a_release_that_goes_and_comes_under_another_name_takes_up_its_jobs_and_touches_no_others(
    users, tmp_path
):
    alice, bob = users
    alice.install("one")
    bob.install("two")
    definitions = f"{JOBS.plural}.{JOBS.group}"
    before = (await alice.world.api.get(DEFINITIONS, None, definitions))["metadata"]["uid"]
    with running(await bob.operator_of("two", tmp_path / "two")):
        with running(await alice.operator_of("one", tmp_path / "one")):
            for user in users:
                await user.world.apply_job()
            for user in users:
                await user.world.until_condition("Running", "PodsCreated")
                children = await user.world.children()
                assert {child["metadata"]["namespace"] for child in children.values()} == {user.world.namespace}
        uids = {
            user: {name: await user.world.uid(PODS, name) for name in await user.world.names(PODS)} for user in users
        }
        alice.uninstall("one")
        assert await alice.world.exists(JOBS, "mcqa")
        assert (await alice.world.api.get(DEFINITIONS, None, definitions))["metadata"]["uid"] == before
        alice.install("three")
        with running(await alice.operator_of("three", tmp_path / "three")):
            await alice.world.apply_job("another")
            await alice.world.until_condition("Running", "PodsCreated", "another")
            for user in users:
                now = {name: await user.world.uid(PODS, name) for name in uids[user]}
                assert now == uids[user], "a pod was made anew"
                await user.world.report_outcome(outcome())
                await user.world.until_phase("Succeeded")
