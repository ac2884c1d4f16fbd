"""Makes Gym's model servers say which rollout a call is of, and capture each call before its caller has the answer; and
Gym start Ray without its dashboard. Python imports this as each of Gym's processes starts.

NeMo Gym 0.5.0's agents call a model server under `/ng-rollout/<id>`, and the server's `_CaptureMiddleware` strips that
prefix before it calls the model, which so never learns the id. Here the id stays in Gym's own context variable
(`nemo_gym.rollout_correlation`) while such a request is served, and goes with each call upstream as a header.

That middleware means to hold the end of an answer back until the call is on disk. But another one within it
(`setup_session_middleware` in `nemo_gym/server_utils.py`) makes two parts of an answer, the whole body and an empty
end, and a client that was told the length does not wait for the second: a rollout could end before its last call was
captured. Here such a body stays one part.

The dashboard, which nobody can reach, is ten processes, and `nemo_gym.server_utils.initialize_ray` offers no way to
leave it out.

It imports nothing of this project, since a Gym beside the evaluator has an interpreter of its own. Where Gym is not as
expected, calls carry no header or may be captured late: the evaluator then tells them apart by less, or has none of a
rollout, and says so.
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


def _capture_first(models):
    begin = models._CaptureMiddleware.__init__

    def begin_with_whole_bodies(self, app, *args, **options):
        begin(self, _whole_bodies(app), *args, **options)

    models._CaptureMiddleware.__init__ = begin_with_whole_bodies


def _whole_bodies(app):
    """The ASGI application, of whose answers each that states its length has one part. Streams pass as they come."""

    async def serve(scope, receive, send):
        parts = None

        async def send_whole(message):
            nonlocal parts
            if message["type"] == "http.response.start":
                stated = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                parts = [] if stated else None
            if message["type"] != "http.response.body" or parts is None:
                await send(message)
                return
            parts.append(message.get("body") or b"")
            if not message.get("more_body", False):
                await send({**message, "body": b"".join(parts)})

        await app(scope, receive, send_whole)

    return serve


def _send_rollout(client):
    from nemo_gym.rollout_correlation import current_rollout_id

    send = client.request

    async def send_with_rollout(**call):
        rollout = current_rollout_id()
        if rollout is not None:
            call["headers"] = {**(call.get("headers") or {}), HEADER: rollout}
        return await send(**call)

    client.request = send_with_rollout


def _leave_out_dashboard(servers):
    start = servers.ray.init

    def start_without(*args, **options):
        return start(*args, **{"include_dashboard": False, **options})

    servers.ray.init = start_without


class _Changed:
    """A finder that changes some of Gym's modules as they are imported."""

    def __init__(self):
        unnamed = "model calls will not say their rollout"
        self.changes = {
            "nemo_gym.base_responses_api_model": {
                _keep_rollout: unnamed,
                _capture_first: "model calls may be captured after their answer",
            },
            "nemo_gym.openai_utils": {_send_rollout: unnamed},
            "nemo_gym.server_utils": {_leave_out_dashboard: "Ray may start its dashboard"},
        }
        """By module; of each change, what happens without it."""

    def find_spec(self, name, path=None, target=None):
        changes = self.changes.pop(name, None)
        if changes is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_change(module):
                run(module)
                for change, without in changes.items():
                    try:
                        change(module)
                    except Exception as error:
                        print(f"{name} is not as expected, so {without}: {error!r}", file=sys.stderr)

            spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, _Changed())
