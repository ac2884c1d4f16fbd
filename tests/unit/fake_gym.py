"""A stand-in for NeMo Gym's command line, as far as the evaluator uses it.

Behaviour is taken from nemo_gym 0.5.0: `--resume` runs what the output lacks, one failed rollout ends the
command with 1 while recorded rows stay, the failed row is printed only with request debugging. FAKE_GYM
in the environment is JSON: `fail` (expected answers whose verifier raises), `nan` (answers with a null
reward), `large` (answers whose result has another `size` bytes, ahead of its indices), `start` ("fail",
"busy", "clash" or "hang", after so many `lines`), `validate` ("fail"), `delay` (seconds after each rollout),
`prints` (a variable that the servers print), `says` (the collection's standard error), `crash` (seconds until the
servers end), `stubborn` (a child that ignores signals), `killed` (answers at which the collection is killed).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BEHAVIOUR = json.loads(os.environ.get("FAKE_GYM", "{}"))


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def override(name: str) -> str:
    for argument in sys.argv:
        key, _, value = argument.lstrip("+").partition("=")
        if key == name:
            return value.strip("'")
    raise SystemExit(f"no {name} in {sys.argv}")


def state() -> Path:
    return Path(override("hydra.run.dir")).parent / "fake_gym.json"


def env_start() -> None:
    if "prints" in BEHAVIOUR:
        print(f"it is {os.environ[BEHAVIOUR['prints']]}!", flush=True)
    for number in range(BEHAVIOUR.get("lines", 0)):
        print("line", number, flush=True)
    if BEHAVIOUR.get("stubborn"):
        ignore = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]"
        code = f"{ignore}; print('stubborn child', flush=True); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
    if BEHAVIOUR.get("start") == "fail":
        print("ImportError: no module named x", flush=True)
        raise SystemExit(1)
    if BEHAVIOUR.get("start") == "busy":
        print(
            "Exception: The current node timed out during startup. This could happen because some of the raylet failed"
        )
        raise SystemExit(1)
    if BEHAVIOUR.get("start") == "clash":
        print("ERROR: [Errno 98] error while attempting to bind on ('127.0.0.1', 8123): address already in use")
        print("\n".join(f"what comes after {number}" for number in range(30)), flush=True)
        raise SystemExit(1)
    url, debug = override("policy_base_url"), override("global_aiohttp_client_request_debug")
    state().write_text(
        json.dumps({"url": url, "debug": debug == "true", "captures": override("model_call_capture_dir")})
    )
    print("1 / 2 servers ready. Waiting for servers to spin up: ['mcqa']", flush=True)
    if BEHAVIOUR.get("start") != "hang":
        print("All 2 / 2 servers ready!", flush=True)
    try:
        time.sleep(BEHAVIOUR.get("crash", 600))
        print("Process `mcqa` finished unexpectedly!", flush=True)
        raise SystemExit(1)
    except KeyboardInterrupt:
        print("shut down", flush=True)


def ask(url: str, row: dict) -> str:
    body = json.dumps({"model": "org/Name-3.2", "messages": row["responses_create_params"]["input"]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['NHX_HOST_TOKEN']}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def fail(row: dict, content: str, debug: bool) -> None:
    if debug:
        token = os.environ["NHX_HOST_TOKEN"]
        print(f"Request info: RequestInfo(headers=<'Authorization': 'Bearer {token}'>)")
        print(f"Response content: {content}")
        summary = {key: row[key] for key in ("_ng_task_index", "_ng_rollout_index")}
        print(f"[rollout_collection] /run failed status=500 row={json.dumps(summary, sort_keys=True)}", flush=True)
    print("ClientResponseError: 500", file=sys.stderr)
    raise SystemExit(1)


def eval_run() -> None:
    settings = json.loads(state().read_text())
    print(BEHAVIOUR.get("says", ""), file=sys.stderr, flush=True)
    output = Path(option("--output"))
    inputs = output.with_name("rollouts_materialized_inputs.jsonl")
    assert "--resume" in sys.argv and "--no-serve" in sys.argv
    done = [json.loads(line) for line in output.read_text().splitlines()]
    seen = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in done}
    with output.open("a") as out:
        for line in inputs.read_text().splitlines():
            row = json.loads(line)
            if (row["_ng_task_index"], row["_ng_rollout_index"]) in seen:
                continue
            try:
                text = ask(settings["url"], row)
            except urllib.error.HTTPError as error:
                fail(row, repr(error.read()), settings["debug"])
            if row["expected_answer"] in BEHAVIOUR.get("killed", []):
                os.kill(os.getpid(), 9)
            if row["expected_answer"] in BEHAVIOUR.get("fail", []):
                fail(row, "b\"KeyError('no such table')\"", settings["debug"])
            reward = (
                None if row["expected_answer"] in BEHAVIOUR.get("nan", []) else float(text == row["expected_answer"])
            )
            usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
            result = {**row, "reward": reward, "response": {"output": [text], "usage": usage}}
            if row["expected_answer"] in BEHAVIOUR.get("large", []):
                result = {"note": "x" * BEHAVIOUR["size"], **result}
            captures = Path(settings["captures"])
            captures.mkdir(exist_ok=True)
            name = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}.capture.jsonl"
            (captures / name).write_text(json.dumps({"response": text}) + "\n")
            out.write(json.dumps(result) + "\n")
            out.flush()
            done.append(result)
            time.sleep(BEHAVIOUR.get("delay", 0))
    rewards = [row["reward"] for row in done]
    assert None not in rewards or "nan" in BEHAVIOUR
    mean = sum(reward or 0 for reward in rewards) / len(rewards)
    metrics = {"mean/reward": mean, "pass@1/accuracy": 100 * mean, "rows": len(rewards)}
    entry = {"agent_ref": done[0]["agent_ref"], "agent_metrics": metrics, "key_metrics": {}, "group_level_metrics": []}
    output.with_name("rollouts_aggregate_metrics.json").write_text(json.dumps([entry]))


def main() -> None:
    command = " ".join(sys.argv[1:3])
    if command == "env validate":
        print("unresolved value: x" if BEHAVIOUR.get("validate") else "ok")
        raise SystemExit(1 if BEHAVIOUR.get("validate") else 0)
    {"env start": env_start, "eval run": eval_run}[command]()


main()
