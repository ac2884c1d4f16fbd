"""The settings file and the key that an operator starts with."""

import json

import pytest

from nhx_gym_operator.controller.settings import SettingsError, load_installation

MINIMAL = {"images": {"tasks": "t", "gymHost": "h", "gymTasks": "g"}}


def load(tmp_path, content=MINIMAL, key=b"k" * 32, **environ):
    (tmp_path / "settings.yaml").write_text(json.dumps(content))
    (tmp_path / "key").write_bytes(key)
    paths = {
        "NHX_SETTINGS": str(tmp_path / "settings.yaml"),
        "NHX_OPERATOR_KEY_FILE": str(tmp_path / "key"),
    }
    return load_installation(paths | environ)


def test_defaults_are_those_that_the_documents_give(tmp_path):
    installation = load(tmp_path)
    assert installation.settings.sandbox.mode == "Auto"
    assert installation.settings.sandbox.isolation == "Kernel"
    assert installation.settings.timeouts.pod_start_seconds == 900
    assert installation.settings.timeouts.wait_for_inputs_seconds == 300
    assert installation.settings.resources.gym_host["limits"]["memory"] == "3Gi"
    assert installation.api.service is None


def test_the_address_of_the_api_is_known_in_a_pod(tmp_path):
    installation = load(tmp_path, KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443")
    assert installation.api.service == ("10.96.0.1", 443)


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        ({}, b"k" * 32, "images"),
        (MINIMAL | {"sandbox": {"mode": "Maybe"}}, b"k" * 32, "sandbox.mode"),
        (MINIMAL | {"sandbux": {}}, b"k" * 32, "sandbux"),
        (MINIMAL, b"short", "at least 32"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(tmp_path, content, key, words):
    with pytest.raises(SettingsError, match=words):
        load(tmp_path, content, key)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="NHX_SETTINGS"):
        load_installation({"NHX_SETTINGS": str(tmp_path / "none")})
