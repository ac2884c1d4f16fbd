"""The model gateway: the one way from a job's Gym to its models.

Gym speaks to `/models/<name>/v1/…` with its own job token. The gateway takes the model's real key
instead, keeps a deadline per call, repeats what may pass, limits concurrency and counts tokens.

What it returns must be final for Gym. NeMo Gym 0.5.0 repeats 429, 502, 503, 504 and 520 every 0.5 s
without end, 500 three times, and has no client timeout (`RATE_LIMIT_ERROR_CODES`, `_request_with_retry`
in `nemo_gym/openai_utils.py`); every other status ends the rollout. So a call that is given up is
answered 424. And its `vllm_model` takes any 400 whose text has `max_tokens` or `context length` for an
over-long prompt and invents an empty answer (`responses_api_models/vllm_model/app.py`), which a verifier
then scores 0; its `openai_model` fails the rollout over the very same refusal. A number must not hang on that, and
nobody may be scored for what the model never said: a 400 becomes 422, over which every model server of Gym fails.
A prompt that outgrew the model's context is told by its class, `context`, and scores nothing.
"""

from .answers import MAX_ANSWER_BYTES
from .calls import CALL_PATHS, CALLER, LOCAL_CALLER, ModelGateway
from .endpoint import Unusable
from .requests import MAX_REQUEST_BYTES

__all__ = ["CALLER", "CALL_PATHS", "LOCAL_CALLER", "MAX_ANSWER_BYTES", "MAX_REQUEST_BYTES", "ModelGateway", "Unusable"]
