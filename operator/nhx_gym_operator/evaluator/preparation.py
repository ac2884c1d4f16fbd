"""What is done before anything is paid for: rows, keys, environment, bucket, journal. Each may refuse the job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from nhx_evals_sdk.agent_eval.runtimes.gym.results import ensure_fresh_output
from sandboxed_gym.environment_package import EnvironmentPackageError, load_environment_package

from ..api.bundled import AGENTS, agent_of, known_agents
from ..api.conditions import RunReason
from ..api.models import model_field
from ..api.outcome import trimmed
from ..api.wire.mounts import GYM_RUN, SECRET_FILE
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import FailureClass
from . import gym_files
from .dataset import Dataset, Subset, load_dataset, load_taskset, missing_bundled, unusable_mounted
from .errors import JobFailed
from .example_rows import lacking_fields
from .journal import Journal, JournalHeader
from .model_keys import ModelKeys
from .packing import PackedEnvironment, pack
from .plan import Paths
from .trust import trust

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
    """The steps that come before collection. Their errors have a name in `endings`."""

    plan: EvaluatorPlan
    paths: Paths

    async def dataset(self) -> Dataset:
        """The tasks, as many as the job may roll out."""
        dataset = await asyncio.to_thread(self._load_dataset)
        self._check_rollouts(len(dataset.tasks))
        return self._compared_with_example(dataset)

    def keys(self) -> tuple[ModelKeys, list[str]]:
        """The models' keys, each of which can be read, and warnings about them."""
        keys, warnings = ModelKeys(self.paths.model_keys), []
        for route in self.plan.models:
            keys.read(route)
            if keys.was_trimmed(route):
                warnings.append(trimmed(f"the API key of model {route.name!r}"))
        return keys, warnings

    def trusted(self) -> dict[str, ssl.SSLContext]:
        """The certificates of those models that have some of their own, by the model's name."""
        return {
            route.name: trust(self.paths.model_certificates / route.name / SECRET_FILE, model_field(route.name))
            for route in self.plan.models
            if route.has_certificates
        }

    async def environment(self) -> PackedEnvironment | None:
        """The staged environment as hosts fetch it."""
        if not self.plan.environment:
            return None
        return await asyncio.to_thread(pack, self.paths.environment, self.paths.work / "environment.tar")

    def ignored_agent(self) -> list[str]:
        """A warning about an agent that is not what `agentRefName` of a job with an environment is an instance of: Gym
        goes by that name alone. No refusal, since elsewhere such a job runs."""
        target, environment = self.plan.target, self.paths.environment
        if not self.plan.environment or target.agent_ref_name in (None, target.agent):
            return []
        instance = f"spec.target.gym.agentRefName {target.agent_ref_name!r}"
        agents = _agents_of(target.agent_ref_name, environment)
        if agents:
            of = f"{instance} is an instance of {', '.join(map(repr, sorted(agents)))}"
            return [] if target.agent in agents else [f"spec.target.gym.agent {target.agent!r} was ignored: {of}"]
        # A server may bring its agent along in a way that is not seen here.
        if (environment / AGENTS / target.agent).is_dir() or target.agent in known_agents():
            return []
        return [
            f"spec.target.gym.agent {target.agent!r} is neither in the environment ({AGENTS}{target.agent}) nor in the "
            f"images; Gym went by {instance} and ignored it"
        ]

    async def journal(self, dataset: Dataset) -> Journal:
        """The job's journal, on a volume that holds nobody else's rollouts."""
        self._require_fresh_results()
        header = JournalHeader(self.plan.uid, dataset.digest, self.plan.target.num_repeats)
        return await asyncio.to_thread(Journal.open, self.paths.journal, header)

    def _load_dataset(self) -> Dataset:
        file, label = self.paths.dataset_file(self.plan.dataset_file), self.plan.dataset_label
        unusable = missing_bundled(file, self.paths.bundled_datasets)
        unusable = unusable or unusable_mounted(file, self.paths.dataset, label)
        if unusable is not None:
            raise unusable
        subset = Subset(self.plan.limit, self.plan.task_ids)
        if self.plan.taskset:
            return load_taskset(file, label, subset)
        return load_dataset(file, label, subset, copy=self.paths.work / "rows" / file.name)

    def _compared_with_example(self, dataset: Dataset) -> Dataset:
        """An environment's server is not the bundled one, whatever its name."""
        server, bundled = self.plan.target.resources_server, self.paths.bundled_datasets
        notice = None if self.plan.environment else lacking_fields(dataset.tasks, bundled, server)
        if notice is None:
            return dataset
        log.warning("%s: %s", self.plan.dataset_label, notice.message)
        return replace(dataset, notices=[*dataset.notices, notice])

    def _check_rollouts(self, tasks: int) -> None:
        bound, repeats = self.plan.max_rollouts, self.plan.target.num_repeats
        if bound is not None and tasks * repeats > bound.value:
            raise JobFailed(
                RunReason.ROLLOUT_LIMIT_EXCEEDED,
                f"{tasks} tasks x numRepeats {repeats} are {tasks * repeats} rollouts, and {bound.setting} allows "
                f"{bound.value}; lower spec.tasks.limit or spec.target.gym.numRepeats",
                FailureClass.BUDGET,
            )

    def _require_fresh_results(self) -> None:
        """Refuses a volume that holds somebody else's rollouts, as the SDK's runner refuses such a directory. What our
        own journal speaks of is this job's, of an earlier try."""
        if self.paths.journal.exists():
            return
        try:
            ensure_fresh_output(self.paths.attempt(self.plan.attempt) / GYM_RUN / gym_files.ROLLOUTS)
        except FileExistsError as error:
            raise JobFailed(
                RunReason.RESULTS_NOT_FRESH, f"{self.plan.results_location} is not this job's alone: {error}"
            ) from error


async def changed_environment(environment: PackedEnvironment | None, journal: Journal) -> list[str]:
    """A warning if the FileSet changed between two attempts, whose rollouts stand side by side in one result."""
    others = await journal.add_environment(environment.digest) if environment else []
    if not environment or not others or not journal.results:
        return []
    return [
        f"the environment's content changed between attempts: this one staged {environment.digest}, "
        f"rollouts of earlier ones ran in {', '.join(others)}; set the FileSet's spec.digest to have it refused"
    ]


def _agents_of(instance: str, environment: Path) -> set[str]:
    """The agents that a name is an instance of, by what the environment's manifest lists, else by Gym's own files."""
    found: set[str] = set()
    with contextlib.suppress(EnvironmentPackageError, OSError, ValueError, yaml.YAMLError):
        for file in load_environment_package(environment).config_paths:
            declared = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get(instance)
            if isinstance(declared, dict):
                found |= set(map(str, declared.get(AGENTS.rstrip("/")) or ()))
    known = agent_of(instance)
    return found or ({known} if known else set())
