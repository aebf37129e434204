"""Text encoders: a tokenizer and a transformer of Hugging Face, pretrained or small and new."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from retable.platform.console import quiet
from retable.platform.errors import UserError
from retable.tasks.audio.config import Config, Pretrained, Untrained
from retable.tasks.audio.encoders.tokens import clean, read_tokenizer, tokens, unlimited

SPECIALS = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
"""In the order of their numbers."""
BYTES = 256
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
"""Fields with the dropout of hidden layers and attention: of BERT and most others, of DistilBERT and its kind."""
FOREIGN = ("_name_or_path", "transformers_version")
"""Fields of an architecture that say where it came from: equal encoders must give equal files."""


class TextEncoder(nn.Module):
    """A transformer that turns a caption into one vector, and the tokenizer that it was trained with.

    The vector is the class token's or the mean over all tokens; see `Pretrained.pooling`.

    The tokenizer and the architecture are part of the state dict, as JSON in the bytes of one tensor (torch's "extra
    state"): a trained run needs no other file. Loading a state replaces the tokenizer.
    """

    def __init__(self, network: nn.Module, tokenizer: Any, words: int, pooling: str = "class") -> None:
        super().__init__()
        self.network, self.words, self.pooling = network, words, pooling
        self.architecture: Any = network.config
        self.width: int = self.architecture.hidden_size  # type: ignore[assignment, union-attr]
        self.tokenizer = unlimited(tokenizer)

    def tokenize(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return `ids` (caption, token), padded to the longest caption, and `mask`, true where there is a token.

        See `tokens.tokens`.
        """
        rows = [torch.tensor(ids) for ids in tokens(self.tokenizer, captions, self.words)]
        padding = self.architecture.pad_token_id or 0
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
        lengths = torch.tensor([len(row) for row in rows])
        return {"ids": ids, "mask": torch.arange(ids.shape[1]) < lengths[:, None]}

    def forward(
        self, ids: Int[Tensor, "caption token"], mask: Bool[Tensor, "caption token"]
    ) -> Float[Tensor, "caption width"]:
        """Return the last hidden state of each caption: the class token's, or the mean; no layer follows."""
        hidden: Tensor = self.network(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        if self.pooling == "class":
            return hidden[:, 0]
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def get_extra_state(self) -> UInt8[Tensor, " byte"]:
        """Return tokenizer and architecture; see `state_of`."""
        return state_of(self.tokenizer, self.architecture)

    def set_extra_state(self, state: UInt8[Tensor, " byte"]) -> None:
        """Take the tokenizer of such a state; the architecture is what it is."""
        self.tokenizer = read_tokenizer(read_state(state)["tokenizer"])


def state_of(tokenizer: Any, architecture: Any) -> UInt8[Tensor, " byte"]:
    """Return a tokenizer and an architecture of transformers as the bytes of a JSON text."""
    fields = {k: v for k, v in architecture.to_dict().items() if k not in FOREIGN}
    content = {"tokenizer": json.loads(tokenizer.to_str()), "architecture": fields}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).clone()


def read_state(state: UInt8[Tensor, " byte"]) -> dict[str, Any]:
    """Return the `tokenizer` and the `architecture` of a state, as JSON has them."""
    content: dict[str, Any] = json.loads(bytes(state.cpu().numpy()))
    return content


def build_text(config: Config, captions: Sequence[str]) -> TextEncoder:
    """Make the text encoder of a config, on the CPU; random weights come from torch's global generator.

    Args:
        config: the run's; `text` chooses the encoder.
        captions: those of training, which the tokenizer of an untrained encoder is trained on.

    Raises:
        UserError: where a pretrained encoder cannot be had or used, or a vocabulary is too small.
    """
    if isinstance(config.text, Pretrained):
        return _pretrained(config.text, config.tokens)
    network = _network(_architecture(config.text, config.tokens))
    return TextEncoder(network, train_tokenizer(config.text, captions), config.tokens)


def outline(name: str, words: int) -> TextEncoder:
    """Make an encoder of transformers without its weights: its architecture and its tokenizer are read.

    Args:
        name: a folder, or a name on the hub; without a network, what lies in the cache.
        words: see `Config.tokens`.

    Raises:
        UserError: where it cannot be had, or is no text encoder.
    """
    with _quiet():
        architecture, tokenizer = _described(name, words)
    with torch.device("meta"):
        network = _network(architecture)
    return TextEncoder(network, tokenizer, words)


def rebuild_text(config: Config, state: UInt8[Tensor, " byte"], trained: bool = False) -> TextEncoder:
    """Make a text encoder, with random weights, from the extra state of one: nothing is downloaded.

    Args:
        config: the run's.
        state: of another run's encoder.
        trained: whether it is trained on: a pretrained one then has the config's dropout, and is frozen as it says.
    """
    from transformers import AutoConfig

    content, text = read_state(state), config.text
    architecture, pooling = AutoConfig.for_model(**content["architecture"]), "class"
    if isinstance(text, Pretrained):
        pooling = text.pooling
        if trained:
            _set_dropout(architecture, text.dropout)
    network = _network(architecture).requires_grad_(not (isinstance(text, Pretrained) and text.frozen))
    return TextEncoder(network, read_tokenizer(content["tokenizer"]), config.tokens, pooling)


def _set_dropout(architecture: Any, rate: float) -> None:
    for field in DROPOUTS:
        if hasattr(architecture, field):
            setattr(architecture, field, rate)


def _network(architecture: Any) -> nn.Module:
    from transformers import AutoModel

    return _without_pooler(AutoModel.from_config(architecture))  # type: ignore[no-untyped-call]


def _without_pooler(network: Any) -> nn.Module:
    """Drop the layer behind the class token, whose weights would never be trained."""
    if hasattr(network, "pooler"):
        network.pooler = None
    made: nn.Module = network
    return made


def _architecture(text: Untrained, words: int) -> Any:
    """Return the architecture of an untrained encoder: BERT's or RoBERTa's, in its usual proportions.

    Weights are drawn wider than theirs, whose 0.02 is for a width of 768: class tokens of a small encoder would hardly
    differ from caption to caption at first, and it would learn late.
    """
    from transformers import AutoConfig

    specials = SPECIALS[text.family]
    padding = next(number for number, word in enumerate(specials) if "pad" in word.lower())
    positions = words if text.family == "bert" else words + padding + 1  # RoBERTa counts from the padding's number on
    return AutoConfig.for_model(
        text.family,
        vocab_size=text.vocabulary,
        hidden_size=text.width,
        num_hidden_layers=text.depth,
        num_attention_heads=text.heads,
        intermediate_size=4 * text.width,
        max_position_embeddings=positions,
        type_vocab_size=2 if text.family == "bert" else 1,
        pad_token_id=padding,
        initializer_range=0.02 * math.sqrt(768 / text.width),
        hidden_dropout_prob=text.dropout,
        attention_probs_dropout_prob=text.dropout,
    )


def train_tokenizer(text: Untrained, captions: Sequence[str]) -> Any:
    """Train WordPiece (BERT) or byte-level BPE (RoBERTa) on captions: a `tokenizers.Tokenizer`, equal for equal ones.

    Raises:
        UserError: where the vocabulary is too small for single letters.
    """
    from tokenizers.processors import TemplateProcessing

    specials = SPECIALS[text.family]
    least = len(specials) + (BYTES if text.family == "roberta" else 2)
    if text.vocabulary < least:
        raise UserError(f"text.vocabulary: {text.vocabulary} is too few for {text.family}; take at least {least}")
    captions = [clean(caption) for caption in captions]
    train, start, end = (_word_pieces, "[CLS]", "[SEP]") if text.family == "bert" else (_byte_pairs, "<s>", "</s>")
    tokenizer = train(captions, specials, text.vocabulary)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(word, specials.index(word)) for word in (start, end)]
    )
    return tokenizer


def _byte_pairs(captions: Sequence[str], specials: list[str], size: int) -> Any:
    """Train byte-level pairs as RoBERTa has them: there is no unknown word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(captions, trainer)
    return tokenizer


def _word_pieces(captions: Sequence[str], specials: list[str], size: int) -> Any:
    """Train pieces of words as uncased BERT has them.

    The library numbers letters within words (`##a`) in random order, and by these numbers it breaks ties. So they are
    named here, as if they were special, and the tokenizer is made of the vocabulary that follows. The library also
    breaks ties between rare letters at random; so the rarest are left out here.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    captions = [normalizer.normalize_str(caption) for caption in captions]
    counts = Counter("".join("".join(caption.split()) for caption in captions))
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    common = ranked[: (size - len(specials)) // 2]
    rare = str.maketrans(dict.fromkeys(ranked[len(common) :], " "))
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = splitter
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*specials, *common, *(f"##{letter}" for letter in common)],
        limit_alphabet=size,
        show_progress=False,
    )
    trained.train_from_iterator((caption.translate(rare) for caption in captions), trainer)
    model: Any = models.WordPiece
    tokenizer = Tokenizer(model(trained.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoders.WordPiece()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _pretrained(text: Pretrained, words: int) -> TextEncoder:
    """Load an encoder of transformers: from a local folder, the cache, or the hub, in this order."""
    from transformers import AutoModel

    with _quiet():
        architecture, tokenizer = _described(text.name, words)
        _set_dropout(architecture, text.dropout)
        network, info = _load(AutoModel, text.name, config=architecture, dtype=torch.float32, output_loading_info=True)
    if lacking := sorted(name for name in info["missing_keys"] if not name.startswith("pooler.")):
        raise UserError(f"text.name {text.name!r}: its weights lack {lacking[0]}; take a whole copy")
    network = _without_pooler(network).requires_grad_(not text.frozen)
    return TextEncoder(network, tokenizer, words, text.pooling)


def _described(name: str, words: int) -> tuple[Any, Any]:
    """Read an encoder's architecture and tokenizer.

    Raises:
        UserError: where they cannot be had, or are of no text encoder.
    """
    from transformers import AutoConfig

    architecture = _load(AutoConfig, name)
    _check(name, architecture, words)
    return architecture, fast_tokenizer(name)


def fast_tokenizer(name: str) -> Any:
    """Read an encoder's tokenizer alone, which neither pads nor cuts: a `tokenizers.Tokenizer`.

    Args:
        name: a folder, or a name on the hub; without a network, what lies in the cache.

    Raises:
        UserError: where it cannot be had.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    with _quiet():
        tokenizer = getattr(_load(AutoTokenizer, name), "backend_tokenizer", None)
    if tokenizer is None:
        raise UserError(f"text.name {name!r}: has no fast tokenizer; take another encoder")
    return unlimited(Tokenizer.from_str(tokenizer.to_str()))


def _check(name: str, architecture: Any, words: int) -> None:
    if architecture.is_encoder_decoder or not hasattr(architecture, "hidden_size"):
        raise UserError(f"text.name {name!r}: a {architecture.model_type} is no text encoder; take a BERT or RoBERTa")
    positions = getattr(architecture, "max_position_embeddings", None)
    if positions is not None and words + 2 > positions:  # RoBERTa and its kind leave the first two unused
        raise UserError(f"tokens: {words} are more than the positions of text.name {name!r}; take {positions - 2}")


def _load(kind: Any, name: str, **options: Any) -> Any:
    """Load a part of an encoder; what lies in the cache is not asked for again.

    Raises:
        UserError: where it is neither here nor to be had from the hub.
    """
    folder = Path(name).expanduser()
    looks_local = name.startswith(("/", ".", "~")) or folder.is_dir()
    if looks_local and not (folder / "config.json").is_file():
        raise UserError(
            f"text.name {name!r}: no folder with a config.json; save an encoder there, or name one of the hub"
        )
    try:
        return kind.from_pretrained(folder if looks_local else name, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        if looks_local:
            raise UserError(f"text.name {name!r}: {_reason(error)}; save the encoder there again") from error
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise UserError(
            f"text.name {name!r}: neither in the cache of Hugging Face nor to be had from the hub ({_reason(error)}); "
            "name a local folder, or take text=untrained"
        ) from error


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from listing the unused weights of classifiers, and the hub's client each of its attempts."""
    from transformers.utils import logging as progress

    bars = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with quiet(("transformers", "huggingface_hub"), logging.ERROR):
            yield
    finally:
        if bars:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
