"""How a conversation becomes tokens, exactly.

What a policy said stays as it was sampled: the `token_ids` of assistant messages go
into the prompt verbatim, only the text between them is tokenised. So the prompt of a
turn continues the tokens of the turn before it, and training sees what sampling saw.

Two forms: `PieceConversation` for models made by `hf_tiny` (special pieces mark the
roles; needs only the `tokenizers` package) and `TemplateConversation` for the chat
template of any Hugging Face tokenizer (needs `transformers`).
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from trialyard.core.errors import ConfigError, NotFoundError, PolicyError
from trialyard.core.learner import TrainingSequence
from trialyard.core.policy import Message

PAD, UNKNOWN, BEGIN, USER, ASSISTANT, END = (
    "<pad>",
    "<unk>",
    "<bos>",
    "<user>",
    "<assistant>",
    "<end>",
)
SPECIAL_PIECES = (PAD, UNKNOWN, BEGIN, USER, ASSISTANT, END)

ENCODED_TEXTS = 4096
"""Texts whose tokens are remembered: members of a group share their prompts."""


class Conversation(Protocol):
    """Turns messages into tokens and tokens into text."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a completion. They are sampled, kept and trained on."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Tokens up to where the assistant speaks next."""

    def output_ids(self, text: str) -> list[int]:
        """Tokens of a completion with this text, stop token included."""

    def text(self, output_ids: Sequence[int]) -> str:
        """Text of sampled tokens without stop token."""


def demonstration_sequence(
    conversation: Conversation,
    messages: Sequence[Message],
    *,
    trained: Sequence[bool] | None = None,
) -> TrainingSequence:
    """Supervised sequence of a conversation: loss on the assistant's tokens.

    `trained` says for each assistant message, in order, whether it counts (default: all).
    """
    ids: list[int] = []
    mask: list[bool] = []
    said: list[Message] = []
    counts = iter(trained or [True] * sum(message.role == "assistant" for message in messages))
    for message in messages:
        if message.role == "assistant":
            prompt = conversation.prompt_ids(said)
            if prompt[: len(ids)] != ids:
                raise PolicyError(
                    "the chat template rewrites earlier turns, so the demonstration has no single"
                    " token sequence; use a template that only appends"
                )
            mask += [False] * (len(prompt) - len(ids))
            output = tuple(_content_ids(message, conversation.output_ids))
            ids = [*prompt, *output]
            mask += [next(counts)] * len(output)
            message = Message("assistant", message.content, tuple(output))
        said.append(message)
    zeros = (0.0,) * len(ids)
    return TrainingSequence(tuple(ids), tuple(mask), zeros, tuple(float(m) for m in mask))


class PieceConversation:
    """``<bos> <user> text <assistant> output <end> <user> feedback <assistant> ...``.

    A system message is rendered like a user's. An assistant message that was cut off
    gets its ``<end>`` as context, so that the next turn is well formed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = [tokenizer.token_to_id(piece) for piece in SPECIAL_PIECES]
        self._special = [token for token in ids if token is not None]
        _, self._unknown, self._begin, self._user, self._assistant, self._end = self._special
        self._encode = lru_cache(maxsize=ENCODED_TEXTS)(self._encode_anew)

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset({self._end})

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        ids = [self._begin]
        for message in messages:
            if message.role == "assistant":
                ids.append(self._assistant)
                ids += _content_ids(message, self._encode)
                if ids[-1] != self._end:
                    ids.append(self._end)
            else:
                ids += [self._user, *(_content_ids(message, self._encode))]
        return [*ids, self._assistant]

    def output_ids(self, text: str) -> list[int]:
        return [*self._encode(text), self._end]

    def text(self, output_ids: Sequence[int]) -> str:
        kept = [token for token in output_ids if token != self._end]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def _encode_anew(self, text: str) -> tuple[int, ...]:
        """Tokens of plain text. A role piece that a program printed is not a role."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tuple(self._unknown if token in self._special else token for token in ids)


def _content_ids(message: Message, encode: Callable[[str], Sequence[int]]) -> Sequence[int]:
    return encode(message.content) if message.token_ids is None else message.token_ids


class TemplateConversation:
    """The chat template of a Hugging Face tokenizer, spliced around sampled tokens.

    The template is rendered with a mark in place of what the assistant said; the text
    between the marks is tokenised, the sampled tokens are put in verbatim.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise ConfigError(
                f"{directory} uses a chat template; install it with: pip install 'trialyard[hf]'"
            ) from error
        self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer in {directory} has no chat template; use a chat model"
                " or add chat_template to tokenizer_config.json"
            )
        self._marks = tuple(self._tokenizer.get_added_vocab())
        self._stop_ids = frozenset({self._tokenizer.eos_token_id, *_generation_stops(directory)})

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        spliced = [message for message in messages if self._is_spliced(message)]
        marks = [f"mark{index}of{len(spliced)}spliced" for index in range(len(spliced))]
        pending = iter(marks)
        rendered = [
            {
                "role": message.role,
                "content": next(pending) if self._is_spliced(message) else message.content,
            }
            for message in messages
        ]
        text: str = self._tokenizer.apply_chat_template(
            rendered, tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = []
        for mark, message in zip(marks, spliced, strict=True):
            before, found, text = text.partition(mark)
            if not found:
                raise PolicyError(
                    "the chat template drops or reorders messages, so sampled tokens cannot be"
                    " kept; use a template that renders every turn"
                )
            ids += self._encode(before)
            if message.role == "assistant":
                output = list(_content_ids(message, self.output_ids))
                ids += output
                text = self._without_stop(text, output)
            else:
                ids += _content_ids(message, self._encode_plain)
        return [*ids, *self._encode(text)]

    def _is_spliced(self, message: Message) -> bool:
        """Whether tokens are put in beside the template: those that were sampled, and text
        in which a program or a person wrote a role mark, which must not become one."""
        return message.role == "assistant" or any(mark in message.content for mark in self._marks)

    def _without_stop(self, text: str, output: Sequence[int]) -> str:
        """Text behind a completion, without the stop token that the completion holds itself."""
        if output and output[-1] in self._stop_ids:
            stop = self._tokenizer.convert_ids_to_tokens(output[-1])
            return text.removeprefix(stop)
        return text

    def output_ids(self, text: str) -> list[int]:
        return [*self._encode_plain(text), self._tokenizer.eos_token_id]

    def text(self, output_ids: Sequence[int]) -> str:
        kept = [token for token in output_ids if token not in self._stop_ids]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        """Tokens of text in which nothing is a special token."""
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return ids


def _generation_stops(directory: Path) -> set[int]:
    path = directory / "generation_config.json"
    stops = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
    return {stops} if isinstance(stops, int) else set(stops or ())


def load_conversation(directory: Path) -> Conversation:
    """The conversation form of a model directory."""
    path = directory / "tokenizer.json"
    if not any(directory.glob("tokenizer*")):
        raise NotFoundError(f"no tokenizer in {directory}; name a Hugging Face model directory")
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
        if all(tokenizer.token_to_id(piece) is not None for piece in SPECIAL_PIECES):
            return PieceConversation(tokenizer)
    return TemplateConversation(directory)
