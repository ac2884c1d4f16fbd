"""Makes Gym's model servers say which rollout a call is of. Python imports this as each of Gym's processes starts.

NeMo Gym 0.5.0's agents call a model server under `/ng-rollout/<id>`, and the server's `_CaptureMiddleware` strips that
prefix before it calls the model, which so never learns the id. Here the id stays in Gym's own context variable
(`nemo_gym.rollout_correlation`) while such a request is served, and goes with each call upstream as a header.

It imports nothing of this project, since a Gym beside the evaluator has an interpreter of its own. Where Gym is not as
expected, calls carry no header: the evaluator then tells them apart by less, and says so where that is not enough.
"""

import importlib.util
import sys

HEADER = "X-Nhx-Rollout"


def _keep_rollout(models):
    from nemo_gym.rollout_correlation import rollout_context

    prefix, serve = models._ROLLOUT_PATH_RE, models._CaptureMiddleware.__call__

    async def serve_in_context(self, scope, receive, send):
        match = prefix.match(scope.get("path", ""))
        if match is None:
            return await serve(self, scope, receive, send)
        with rollout_context(match.group("rollout_id")):
            return await serve(self, scope, receive, send)

    models._CaptureMiddleware.__call__ = serve_in_context


def _send_rollout(client):
    from nemo_gym.rollout_correlation import current_rollout_id

    send = client.request

    async def send_with_rollout(**call):
        rollout = current_rollout_id()
        if rollout is not None:
            call["headers"] = {**(call.get("headers") or {}), HEADER: rollout}
        return await send(**call)

    client.request = send_with_rollout


class _Changed:
    """A finder that changes two of Gym's modules as they are imported."""

    def __init__(self):
        self.changes = {
            "nemo_gym.base_responses_api_model": _keep_rollout,
            "nemo_gym.openai_utils": _send_rollout,
        }

    def find_spec(self, name, path=None, target=None):
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_change(module):
                run(module)
                try:
                    change(module)
                except Exception as error:
                    print(f"model calls of {name} will not say their rollout: {error!r}", file=sys.stderr)

            spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, _Changed())
