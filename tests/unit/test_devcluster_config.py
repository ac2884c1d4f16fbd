import ipaddress
import json
import tomllib

import pytest

from devcluster import addons, containerd, control_plane, node, paths, pki, settings, status


def test_containerd_is_told_of_both_runtimes_and_keeps_mounts_in_its_own_folder() -> None:
    runtime = tomllib.loads(containerd.render_config())["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["netns_mounts_under_state_dir"]
    assert set(runtime["containerd"]["runtimes"]) == {"runc", "runsc"}
    assert tomllib.loads(containerd.render_runsc())["root"] == str(containerd.runsc_root())


def test_every_address_lies_in_the_range_that_cannot_leave_the_machine() -> None:
    whole = ipaddress.ip_network(settings.WHOLE_RANGE)
    pods, services = ipaddress.ip_network(settings.POD_CIDR), ipaddress.ip_network(settings.SERVICE_CIDR)
    assert pods.subnet_of(whole) and services.subnet_of(whole) and not pods.overlaps(services)
    assert ipaddress.ip_address(settings.DNS_SERVICE_IP) in services
    node_ip = ipaddress.ip_address(settings.NODE_IP)
    assert node_ip in whole and node_ip not in pods and node_ip not in services


def test_pods_get_no_masquerade_and_cluster_dns() -> None:
    bridge = json.loads(containerd.render_network())["plugins"][0]
    assert bridge["ipMasq"] is False
    assert json.loads(node.render_kubelet())["clusterDNS"] == [settings.DNS_SERVICE_IP]


def test_all_parts_agree_on_the_narrow_range_of_node_ports() -> None:
    flag = f"--service-node-port-range={settings.NODE_PORTS}"
    assert flag in control_plane.api_server().argv
    assert flag in node.kube_router().argv


def test_certificates_satisfy_strict_clients() -> None:
    assert "keyUsage=critical,keyCertSign,cRLSign" in pki.AUTHORITY_EXTENSIONS
    for leaf in pki.LEAVES:
        assert "authorityKeyIdentifier" in pki.leaf_extensions(leaf)


def test_every_program_of_the_node_has_a_user_with_a_role() -> None:
    bound = {item["subjects"][0]["name"] for item in addons.objects() if item["kind"] == "ClusterRoleBinding"}
    assert bound == {
        leaf.subject.removeprefix("/CN=") for leaf in pki.LEAVES if leaf.subject.startswith("/CN=devcluster:")
    }


def test_a_version_is_read_from_go_mod() -> None:
    assert status.version_in("require (\n\ta.b/c v1.2.3\n\td.e/f v4 // indirect\n)\n", "d.e/f") == "v4"
    assert status.version_in("require a.b/c v1.2.3\n", "a.b/c") == "v1.2.3"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"ready": True}, "env"),
        ({"busy": True, "ready": True}, "at work"),
        ({"started": []}, "stopped. `make cluster` starts it"),
        ({"gone": ["kubelet"]}, "kubelet.\n`make cluster` repairs it; API objects, volumes and pods stay"),
        ({"gone": ["etcd"], "keeps_objects": False}, "an empty cluster: API objects and volumes went with etcd"),
    ],
    ids=str,
)
def test_the_status_ends_with_what_to_do(state, words):
    usual = {"ready": False, "busy": False, "gone": [], "started": ["etcd", "kubelet"], "keeps_objects": True}
    assert words in status.next_step(**(usual | state))


def test_the_kubeconfig_goes_with_the_cluster_and_comes_back_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setenv("NHX_DEVCLUSTER_STATE", str(tmp_path))
    pki.create()
    before = paths.kubeconfig().read_text()

    pki.remove_admin()
    assert not paths.kubeconfig().exists() and pki.is_valid()

    pki.ensure_admin()
    assert paths.kubeconfig().read_text() == before
    assert paths.kubeconfig().stat().st_mode & 0o777 == 0o600
