"""What a user is told when the model does not answer: what happened, and what to do about it.

Takes a model's name and its failure; gives words. Never shows the text of a provider.
"""

from __future__ import annotations

from turnwire.errors import AgentFailure, ModelFailed

KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GOOGLE_API_KEY or GEMINI_API_KEY",
    "openai": "OPENAI_API_KEY",
}
"""Where each provider's key is."""

WORDS = {
    "rate_limited": "its provider lets no more requests through for now. Wait a while, or choose another model.",
    "overloaded": "its provider is overloaded or broken. Wait a while and send the prompt again.",
    "unreachable": "it cannot be reached. Check the network and the address (--model-url), then send it again.",
    "cut": "its answer broke off twice. What it said is kept: send `go on` to let it continue.",
    "bad_request": "its provider did not take the request. Check the model's name and what it can do.",
    "too_long": "the conversation is longer than it takes. `/compact` makes it shorter; `/clear` begins anew.",
    "unknown": "something went wrong at its provider. Send the prompt again, or choose another model.",
}
RETRYING = {
    "rate_limited": "The model's provider lets no more requests through for now",
    "overloaded": "The model's provider is overloaded",
    "unreachable": "The model cannot be reached",
    "cut": "The connection to the model broke",
}


def failure_of(model: str, failed: ModelFailed) -> AgentFailure:
    """The end of a turn whose model failed."""
    if failed.reason == "unauthorized":
        provider = model.partition(":")[0]
        key = KEYS.get(provider, "its key")
        words = f"its provider does not accept the key. Set {key} where the agent is started, and start it again."
    else:
        words = WORDS.get(failed.reason, WORDS["unknown"])
    return AgentFailure(f"the model {model} did not answer: {words}")


def retry_words(reason: str, attempt: int, wait_s: float) -> str:
    """Told while the next try is waited for."""
    why = RETRYING.get(reason, "The model did not answer")
    return f"{why}; try {attempt} comes in {wait_s:.0f} s.\n"
