"""Tokens: derived, different for everyone, and only ever created."""

import base64
import hashlib
import hmac

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.workloads import secrets, tokens
from support.controller_values import KEY, UID, job, workload


def opened(secret):
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_a_token_is_the_hmac_of_uid_role_and_ordinal():
    expected = hmac.new(KEY, f"{UID}/host/0".encode(), hashlib.sha256).hexdigest()
    assert tokens.host_token(KEY, UID, 0) == expected


def test_no_two_parties_share_a_token():
    given = {tokens.host_token(KEY, UID, 0), tokens.host_token(KEY, UID, 1), tokens.progress_token(KEY, UID)}
    assert len(given) == 3
    assert tokens.host_token(KEY, "another", 0) not in given
    assert tokens.host_token(b"other" * 8, UID, 0) not in given


def test_the_evaluator_knows_all_tokens_and_the_host_only_its_own():
    evaluator, host = secrets.token_secrets(workload())
    assert opened(evaluator) == {
        "progress": tokens.progress_token(KEY, UID),
        "host-0": tokens.host_token(KEY, UID, 0),
    }
    assert opened(host) == {"host": tokens.host_token(KEY, UID, 0)}


def test_each_of_several_hosts_has_a_secret_with_its_own_token_alone():
    evaluator, *hosts = secrets.token_secrets(workload(job(hosts=3)))
    given = [opened(secret) for secret in hosts]
    assert given == [{"host": tokens.host_token(KEY, UID, ordinal)} for ordinal in range(3)]
    assert len({secret["metadata"]["name"] for secret in hosts}) == 3
    assert set(opened(evaluator)) == {"progress", "host-0", "host-1", "host-2"}


def test_secrets_are_immutable_and_owned_by_the_job():
    for secret in secrets.token_secrets(workload()):
        assert secret["immutable"] is True
        assert secret["metadata"]["ownerReferences"][0]["uid"] == UID


def test_the_name_of_a_secret_cannot_be_guessed_without_the_key():
    ours, theirs = workload(), workload(key=b"guess" * 8)
    assert secrets.evaluator_secret_name(ours) != secrets.evaluator_secret_name(theirs)
    assert secrets.evaluator_secret_name(ours).startswith("mcqa-evaluator-")
    assert len(secrets.evaluator_secret_name(ours)) == len("mcqa-evaluator-") + 10
    assert secrets.host_secret_name(ours, 0).startswith("mcqa-host-0-")


def test_a_colocated_job_has_no_host_secret():
    placed = workload(job(), placement=Placement.COLOCATED, cluster_ip=None)
    assert [secret["metadata"]["name"] for secret in secrets.token_secrets(placed)] == [
        secrets.evaluator_secret_name(placed)
    ]


def test_the_key_shows_in_no_representation():
    from support.controller_values import installation

    assert "kkkk" not in repr(installation())
