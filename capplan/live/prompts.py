"""Prompts of an exact length in tokens: words that are one token each to the measured server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from capplan.live.target import Api, Target
from capplan.schema import DataError
from capplan.simulation.attempt import Request

CANDIDATES = """
the of and to in for is on that by this with you it not or be are from at as your all have
new more an was we will home can us about if page my has search free but our one other do
no information time they site he up may what which their news out use any there see only
so his when contact here business who web also now help get view online first am been
would how were services some these click its like service than find price date back top
people had list name just over state year day into email two health world next used go
work last most data make them should product system post her city add policy number such
please available copyright
"""
"""Common English words; those that are one token to the server are used."""
LEAST_WORDS = 8
"""With fewer words prompts would look alike."""
PROBE_WORDS = 16
"""Words of the message that shows what a chat template adds."""
ASKS: tuple[Mapping[str, str], ...] = ({"prompt": ""}, {"content": ""}, {"inputs": ""})
"""The fields in which servers expect a text at ``/tokenize``: vLLM and SGLang, llama.cpp, TGI."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Words that are one token each: their texts, with the space before them, and their ids."""

    texts: tuple[str, ...]
    ids: NDArray[np.int64]
    around: int = 0
    """Tokens that the chat template of the server puts around a message."""
    salt: int = 0
    """Of the run: without one, a server's prefix cache would hold the prompts of the run before."""

    def words(self, request: Request) -> NDArray[np.int64]:
        """Return the numbers of the words of a prompt: its shared prefix blocks, then its own.

        In a run the same block id gives the same words, and the same request the same prompt.
        """
        block, length = request.prefix_block_tokens, request.prompt_tokens
        shared = [
            _draw(len(self.texts), block, seed=(1, self.salt, int(name) & (2**63 - 1)))
            for name in request.prefix_blocks[: length // block if block else 0]
        ]
        held = sum(map(len, shared))
        own = _draw(len(self.texts), length - held, seed=(0, self.salt, request.row))
        return np.concatenate([*shared, own])

    def asked(self, request: Request, api: Api) -> dict[str, Any]:
        """Return the fields that carry a prompt: token ids, or a message that is as many tokens."""
        words = self.words(request)
        if api == "completions":
            return {"prompt": self.ids[words].tolist()}
        text = "".join(self.texts[i] for i in words[self.around :])
        return {"messages": [{"role": "user", "content": text}]}


def _draw(count: int, tokens: int, *, seed: Sequence[int]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(count, size=tokens)


async def vocabulary(target: Target) -> Vocabulary:
    """Return the words that are one token to a server, as its ``/tokenize`` says.

    Raises :class:`DataError` if the server does not tell, or knows too few of the words.
    """
    async with aiohttp.ClientSession(headers=target.all_headers()) as session:
        ask = await _way_to_ask(session, target)
        alone = len(await _asked(session, target, {ask: ""}))
        found: list[tuple[str, int]] = []
        for word in CANDIDATES.split():
            text = f" {word}"
            ids = await _asked(session, target, {ask: text * 3})
            if len(ids) == alone + 3 and len(set(ids[-3:])) == 1:
                found.append((text, ids[-1]))
        if len(found) < LEAST_WORDS:
            rule = f"a tokenizer that makes one token of at least {LEAST_WORDS} common words"
            raise DataError(rule, where=target.url, field="/tokenize", value=len(found))
        around = await _around(session, target, found[0][0]) if target.api == "chat" else 0
    return Vocabulary(
        texts=tuple(text for text, _ in found),
        ids=np.array([number for _, number in found]),
        around=around,
    )


async def _around(session: aiohttp.ClientSession, target: Target, word: str) -> int:
    """Return the tokens of a prompt that are not of its message, as the server counts them."""
    message = {"role": "user", "content": word * PROBE_WORDS}
    body = {**target.extra, "messages": [message], "max_tokens": 1}
    if target.model is not None:
        body["model"] = target.model
    async with session.post(target.address, json=body) as response:
        answer = await response.json(content_type=None)
    try:
        return int(answer["usage"]["prompt_tokens"]) - PROBE_WORDS
    except (KeyError, TypeError) as err:
        rule = "an answer with usage.prompt_tokens"
        raise DataError(rule, where=target.address, value=answer) from err


async def _way_to_ask(session: aiohttp.ClientSession, target: Target) -> str:
    for ask in ASKS:
        (name,) = ask
        if await _asked(session, target, {name: "the"}):
            return name
    raise DataError("a server with /tokenize", where=target.url, value="no list of tokens")


async def _asked(
    session: aiohttp.ClientSession, target: Target, body: Mapping[str, Any]
) -> list[int]:
    """Return the token ids that a server answers; none if it does not answer with tokens."""
    model = {} if target.model is None else {"model": target.model}
    address = f"{target.url.rstrip('/')}/tokenize"
    try:
        async with session.post(address, json={**body, **model}) as response:
            if response.status != 200:  # noqa: PLR2004
                return []
            answer = await response.json(content_type=None)
    except aiohttp.ClientConnectorError as err:
        raise DataError(f"a server that can be reached ({err})", where=target.url) from err
    except (aiohttp.ClientError, ValueError):
        return []
    found = answer.get("tokens", []) if isinstance(answer, Mapping) else answer
    return [int(one["id"] if isinstance(one, Mapping) else one) for one in found]
