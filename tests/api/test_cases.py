"""Bug cases BOS-1, BOS-3, TXT-1, STP-1, NUM-9 and TPL-5, from a model file to the text that Python gets."""

from __future__ import annotations

from pathlib import Path

import pytest

import rase
from rase.completion import Piece, TextRequest, prepare, run
from rase.engine.config import GenerationConfig
from rase.session import ModelSession
from rase.text.messages import ChatMessage
from tests.support import toys

GREEDY = GenerationConfig(temperature=0.0, max_tokens=32)
HI = [ChatMessage(role="user", content="Hi")]


def both(session: ModelSession, *, stop=(), config=GREEDY, **what):
    """The choice without streaming; asserts that the streamed one is the same, piece by piece."""
    request = TextRequest(config=config, stop=stop, **(what or {"messages": HI}))
    pieces: list[Piece] = []
    streamed = run(session, prepare(session, request), pieces.append).choices[0]
    whole = run(session, prepare(session, request)).choices[0]
    assert whole == streamed
    assert "".join(piece.text for piece in pieces) == whole.text
    assert not any("\ufffd" in piece.text for piece in pieces)
    return whole


def test_bos_1_exactly_one_bos_in_chat_and_completion(tmp_path: Path) -> None:
    toy = toys.toy_bpe(add_bos=True)
    session = ModelSession.load_file(
        toys.chain(tmp_path, ["x", "y"], tokenizer=toy, chat_template=None), chat_template="llama3"
    )
    bos = session.tokenizer.bos_id
    chat = prepare(session, TextRequest(messages=HI, config=GREEDY))
    assert chat.ids.count(bos) == 1 and chat.ids[0] == bos
    raw = prepare(session, TextRequest(prompt="<|begin_of_text|>Hi", config=GREEDY))
    assert raw.ids.count(bos) == 1 and raw.ids[0] == bos
    assert raw.ids == prepare(session, TextRequest(prompt="Hi", config=GREEDY)).ids
    assert run(session, chat).prompt_tokens == len(chat.ids)


@pytest.mark.parametrize(
    ("template", "turn_end", "eos"),
    [("llama3", "<|eot_id|>", "<|end_of_text|>"), ("chatml", "<|im_end|>", "<|endoftext|>")],
)
def test_bos_3_the_end_of_a_turn_ends_the_answer(
    tmp_path: Path, template: str, turn_end: str, eos: str
) -> None:
    toy = toys.toy_bpe(eos=eos)
    path = toys.chain(tmp_path, ["x", turn_end, "y", "z"], tokenizer=toy, chat_template=None)
    session = ModelSession.load_file(path, chat_template=template)
    choice = both(session)
    assert (choice.text, choice.finish_reason) == ("x", "stop")
    assert rase.load(path, chat_template=template).chat("Hi", temperature=0.0) == "x"


@pytest.mark.parametrize(("text", "rest"), [("😸", "!"), ("안", "!")])
def test_txt_1_a_character_of_several_tokens_comes_whole(tmp_path: Path, text: str, rest: str) -> None:
    toy = toys.toy_bpe()
    tokens = [*(toy.byte(value) for value in text.encode()), toy.byte(ord(rest))]
    session = ModelSession.load_file(toys.chain(tmp_path, tokens, tokenizer=toy))
    choice = both(session)
    assert (choice.text, choice.finish_reason) == (text + rest, "stop")
    deltas: list[str] = []
    registry = tmp_path / "store"
    rase.import_model(registry, toys.chain(tmp_path, tokens, tokenizer=toy, name="again"), "m")
    rase.generate_chat_stream_registered_gguf(
        registry, "m", [{"role": "user", "content": "Hi"}], deltas.append, temperature=0.0
    )
    assert deltas == [text, rest]


def test_txt_1_a_character_that_is_cut_by_max_tokens_reads_as_replaced_in_both_ways(tmp_path: Path) -> None:
    toy = toys.toy_bpe()
    tokens = [toy.byte(value) for value in "x😸".encode()]
    session = ModelSession.load_file(toys.chain(tmp_path, tokens, tokenizer=toy))
    request = TextRequest(prompt="Hi ", config=GenerationConfig(temperature=0.0, max_tokens=3))
    pieces: list[str] = []
    choice = run(session, prepare(session, request), lambda piece: pieces.append(piece.text)).choices[0]
    assert choice.finish_reason == "length"
    assert "".join(pieces) == choice.text == session.tokenizer.decode(choice.token_ids)
    assert choice.text.startswith("x")


def test_stp_1_a_stop_string_over_several_tokens(tmp_path: Path) -> None:
    pieces = ["alpha ", "be", "ta ga", "mma", " delta"]
    toy = toys.toy_bpe(pieces=pieces)
    session = ModelSession.load_file(toys.chain(tmp_path, pieces, tokenizer=toy))
    choice = both(session, stop=("beta gamma",))
    assert (choice.text, choice.finish_reason) == ("alpha ", "stop")
    assert both(session).text == "alpha beta gamma delta"
    assert rase.load(tmp_path / "chain.gguf").chat("Hi", temperature=0.0, stop=["beta gamma"]) == "alpha "


def test_num_9_padding_rows_of_the_output_layer_are_never_chosen(tmp_path: Path) -> None:
    toy = toys.toy_bpe()
    size = len(toy)
    values = [0.0] * (size + 20)
    values[size + 10], values[65], values[66] = 30.0, 20.0, 10.0
    path = toys.logits(tmp_path, values, tokenizer=toy, output_rows=size + 20)
    session = ModelSession.load_file(path)
    config = GenerationConfig(temperature=0.0, max_tokens=2, logprobs=5)
    choice = both(session, config=config, prompt="Hi")
    assert choice.text == "AA"
    assert all(id < size for entry in choice.logprobs for id, _, _ in entry.top)
    assert both(session, config=config, prompt=[size + 10]).text == "AA", "a padded id is a legal prompt id"
    hot = GenerationConfig(temperature=2.0, top_k=None, max_tokens=40, seed=5)
    chosen = run(session, prepare(session, TextRequest(prompt="Hi", config=hot))).choices[0].token_ids
    assert len(set(chosen)) > 1 and all(id < size for id in chosen)


def test_tpl_5_a_final_assistant_message_is_a_closed_turn(tmp_path: Path) -> None:
    session = ModelSession.load_file(toys.chain(tmp_path, ["x", "y"]), chat_template="chatml")
    messages = [*HI, ChatMessage(role="assistant", content="Sure, here")]
    ids = prepare(session, TextRequest(messages=messages, config=GREEDY)).ids
    text = session.tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith("Sure, here<|im_end|>\n<|im_start|>assistant\n")
