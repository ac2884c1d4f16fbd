"""The base of all messages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base of everything on the wire. Unknown fields are ignored, so that an operator and the pods
    of an older or newer release understand each other."""

    model_config = ConfigDict(extra="ignore")
