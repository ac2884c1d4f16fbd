"""`examples/submit`: the runner and the spec file there describe the same job."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

from nhx_gym_operator.submission.convert import job_of, manifest_of
from nhx_gym_operator.submission.runner import target_of_runner
from nhx_gym_operator.submission.spec_file import parse_spec
from nhx_gym_operator.submission.target import GymPlacement
from support.cluster import ROOT

EXAMPLE = ROOT / "examples/submit"


def test_the_examples_spec_file_is_its_runner_submitted(tmp_path: Path):
    module_spec = importlib.util.spec_from_file_location("evaluation", EXAMPLE / "evaluation.py")
    assert module_spec and module_spec.loader
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"responses_create_params": {"input": "q"}}))
    given = argparse.Namespace(rows=rows, base_url="http://models.example.org/v1", model="org/name")
    tasks, runner = module.evaluation(given)
    assert len(tasks) == 1

    file = parse_spec(json.loads((EXAMPLE / "gym_agent_eval.json").read_text()), "gym_agent_eval.json")
    live = target_of_runner(runner, GymPlacement(agent_ref_name="mcqa_simple_agent"))
    assert manifest_of(job_of(file.model_copy(update={"target": live}), name="mcqa")) == manifest_of(
        job_of(file, name="mcqa")
    )
