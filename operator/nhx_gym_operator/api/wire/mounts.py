"""Where the files of a job's pods lie: those that are mounted, and those that are written."""

from __future__ import annotations

RESULTS_DIR = "/job/results"
JOURNAL = f"{RESULTS_DIR}/journal.jsonl"
"""Every rollout as soon as it is recorded; bundles are made of it at the end."""
EVALUATOR_LOG = f"{RESULTS_DIR}/evaluator.log"
"""What the evaluator logged, of every attempt: a pod's own log goes with it. Beside the bundle, since it is still
written when that is complete."""
GYM_RUN = "gym_run"
"""Below a bundle: what Gym writes, under the names that it has locally."""
WORK_DIR = "/job/work"
DATASET_DIR = "/job/dataset"
DATASET_NAME = "dataset.jsonl"
DATASET_FILE = f"{DATASET_DIR}/{DATASET_NAME}"
SOURCE_DIR = "/job/source"
"""Where a FileSet that is a volume is mounted, into its stage container only."""
SOURCE_SECRETS_DIR = "/var/run/secrets/nhx/source"
"""`<dir>/<name>/<SECRET_FILE>`, likewise: `AUTHORIZATION` of a web server, and the names of `api.object_store`."""
AUTHORIZATION = "authorization"
SECRET_FILE = "value"
"""What the file of such a secret is called, in a folder of its own."""
ENVIRONMENT_DIR = "/job/environment"
BUNDLED_DATASETS_DIR = "/opt/nhx/datasets"
BUNDLED_SERVERS_FILE = "/opt/nhx/bundled-servers.json"
BUNDLED_VENVS_DIR = "/opt/gym_venvs"
"""Of the images themselves: see images/Containerfile."""
MODEL_KEYS_DIR = "/var/run/secrets/nhx/models"
"""`<dir>/<model name>/<MODEL_KEY_FILE>`: mounted into the evaluator and nowhere else."""
MODEL_KEY_FILE = "api-key"
MODEL_CERTIFICATES_DIR = "/var/run/secrets/nhx/model-certificates"
"""`<dir>/<model name>/<SECRET_FILE>`: authorities of an endpoint with a private one."""
OBJECT_STORE_DIR = "/var/run/secrets/nhx/object-store"
"""`<dir>/<name>/<SECRET_FILE>`: what the evaluator needs to write to the job's bucket."""
TOKENS_DIR = "/var/run/secrets/nhx/tokens"
"""Evaluator: `PROGRESS_TOKEN`, and `host_token_file` of each host. Gym host: its own as `HOST_TOKEN`."""
PROGRESS_TOKEN = "progress"
HOST_TOKEN = "host"


def attempt_dir(attempt: int) -> str:
    """Where the bundle of one attempt lies, below `RESULTS_DIR` and below the job's folder of a bucket."""
    return f"attempt-{attempt}"


def host_token_file(ordinal: int) -> str:
    """What the token of one host is called in the evaluator's pod."""
    return f"host-{ordinal}"
