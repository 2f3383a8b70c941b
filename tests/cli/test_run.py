"""``rase run``: arguments and stdin become one question, stdout gets the answer alone, Ctrl-C stops it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Rase
from tests.support.toys import chain


def test_one_question(rase: Rase, hello: Path) -> None:
    rase("model", "import", hello)
    result = rase("run", "hello", "Who are you?", "--temperature", "0", "--stats")
    assert (result.code, result.out) == (0, "Helo\n")
    assert (
        result.err.startswith("prompt ")
        and "answer 4 tokens" in result.err
        and "first token after" in result.err
    )
    assert rase("run", "hello", "Who", "are", "you?").err == ""


def test_stdin_is_joined(rase: Rase, hello: Path) -> None:
    rase("model", "import", hello)
    alone = json.loads(rase("run", "hello", "--json", stdin=b"0123456789\n").out)
    both = json.loads(rase("run", "hello", "ab", "--json", stdin=b"0123456789").out)
    assert alone["text"] == both["text"] == "Helo" and alone["finish_reason"] == "stop"
    assert both["prompt_tokens"] == alone["prompt_tokens"] + len("ab\n\n")
    assert rase("run", "hello", stdin=b"").code == 2
    result = rase("run", "hello", stdin=b"\xff")
    assert result.code == 2 and "not UTF-8" in result.err


def test_the_only_model_need_not_be_named(rase: Rase, hello: Path, endless: Path) -> None:
    result = rase("run", "hi there")
    assert result.code == 3 and "rase model pull pypi:" in result.err
    rase("model", "import", hello)
    for words in (["What is it?"], ["what", "is", "it"], ["-m", "hello", "hi"], ["hello", "hi"]):
        assert rase("run", *words).out == "Helo\n", words
    result = rase("run", "helo", "What is it?")
    assert result.code == 3 and "Did you mean 'hello'?" in result.err
    result = rase("run", "hi")
    assert result.code == 3 and "rase run hello hi" in result.err
    rase("model", "import", endless)
    result = rase("run", "What is it?")
    assert result.code == 2 and "endless, hello" in result.err


def test_a_file_runs_without_a_store(rase: Rase, hello: Path) -> None:
    assert rase("run", hello, "hi").out == "Helo\n"
    assert rase("run", "absent.gguf", "hi").code == 3


def test_options_reach_the_generation(rase: Rase, hello: Path, endless: Path) -> None:
    rase("model", "import", hello)
    rase("model", "import", endless)
    assert rase("run", "hello", "hi", "--max-tokens", "2").out == "He\n"
    assert rase("run", "hello", "hi", "--stop", "lo").out == "He\n"
    assert rase("run", "endless", "x", "--raw", "--max-tokens", "3").out == "aba\n"
    plain, system = (
        json.loads(rase("run", "hello", "hi", "--json", *more).out)
        for more in ([], ["--system", "Be brief."])
    )
    assert system["prompt_tokens"] > plain["prompt_tokens"]
    assert rase("run", "hello", "hi", "--kv", "q8_0").out == "Helo\n"
    for bad in (
        ["--top-p", "3"],
        ["--temperature", "nan"],
        ["--max-tokens", "0"],
        ["--seed", "-1"],
        ["--device", "cuda"],
        ["--kv", "q4_0"],
    ):
        result = rase("run", "hello", "hi", *bad)
        assert result.code in (1, 2) and result.out == "" and result.err.count("\n") == 1, bad
    result = rase("run", "hello", "x" * 5000)
    assert result.code == 2 and "context" in result.err and "4096" in result.err


def test_a_changed_file_does_not_run(rase: Rase, hello: Path) -> None:
    rase("model", "import", hello)
    with hello.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    result = rase("run", "hello", "hi")
    assert result.code == 4 and result.out == ""


class Reader:
    """Reads a descriptor up to a mark, within 30 seconds; what came after the mark is kept."""

    def __init__(self, source: int) -> None:
        self.source, self.rest = source, ""

    def until(self, mark: str) -> str:
        end = time.monotonic() + 30
        while mark not in self.rest:
            ready, _, _ = select.select([self.source], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {mark!r} in {self.rest!r}"
            try:
                part = os.read(self.source, 65536)
            except OSError:  # the other side of a terminal is gone
                part = b""
            assert part, f"the end came before {mark!r}: {self.rest!r}"
            self.rest += part.decode()
        at = self.rest.index(mark) + len(mark)
        text, self.rest = self.rest[:at], self.rest[at:]
        return text


def test_ctrl_c_stops_an_answer(rase: Rase, endless: Path, command: list[str]) -> None:
    rase("model", "import", endless)
    line = [*command, "run", "endless", "go on", "--max-tokens", "4000"]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        reader = Reader(process.stdout.fileno())
        start = reader.until("abab") + reader.rest
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().decode()
        error = process.stderr.read().decode()
    assert process.returncode == 130 and error == ""
    assert (start + rest).endswith("\n") and len(start + rest) < 4000


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, line: list[str]) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(line, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.expect = Reader(self.master).until

    def say(self, line: str, answer: str = "") -> str:
        """Type a line and wait for the answer and the next prompt."""
        os.write(self.master, line.encode() + b"\n")
        return self.expect(answer) + self.expect(">>> ")

    def interrupt(self) -> None:
        """Press Ctrl-C, not faster than a person: input() misses one between its prompt and its wait."""
        time.sleep(0.3)
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            os.close(self.master)


@pytest.fixture
def terminal(rase: Rase, hello: Path, endless: Path, command: list[str]) -> Terminal:
    rase("model", "import", hello)
    rase("model", "import", endless)
    terminal = Terminal([*command, "run", "hello", "--temperature", "0"])
    terminal.expect("Ctrl-D leaves.")
    terminal.expect(">>> ")
    return terminal


def test_chat(terminal: Terminal) -> None:
    terminal.say("/stats", "No answer yet.")
    terminal.say("hi", "Helo\r\n")
    first = int(terminal.say("/stats", "first token").split("prompt ")[1].split()[0])
    terminal.say("hi", "Helo\r\n")
    second = int(terminal.say("/stats", "first token").split("prompt ")[1].split()[0])
    assert second > first, "the conversation goes on"
    terminal.say("/clear")
    terminal.say("hi", "Helo\r\n")
    again = int(terminal.say("/stats", "first token").split("prompt ")[1].split()[0])
    assert again == first, "/clear forgets"
    terminal.say("/system Be brief.")
    terminal.say("/system", "Be brief.")
    terminal.say("/claer", "Did you mean /clear?")
    terminal.say("/help", "/bye")
    os.write(terminal.master, b'"""one\n')
    terminal.expect("... ")
    terminal.say('two"""', "Helo\r\n")
    terminal.say("x" * 1000)
    os.write(terminal.master, b"/bye\n")
    assert terminal.end() == 0


def test_ctrl_d_leaves(terminal: Terminal) -> None:
    os.write(terminal.master, b"\x04")
    assert terminal.end() == 0


def test_ctrl_c_at_the_prompt(terminal: Terminal) -> None:
    terminal.interrupt()
    terminal.expect("Once more Ctrl-C")
    terminal.expect(">>> ")
    terminal.say("hi", "Helo\r\n")  # … which starts the count again
    terminal.interrupt()
    terminal.expect("Once more Ctrl-C")
    terminal.expect(">>> ")
    terminal.interrupt()
    assert terminal.end() == 130


def test_ctrl_c_in_an_answer_comes_back_to_the_prompt(rase: Rase, endless: Path, command: list[str]) -> None:
    rase("model", "import", endless)
    terminal = Terminal([*command, "run", "endless", "--max-tokens", "4000"])
    terminal.expect(">>> ")
    os.write(terminal.master, b"hi\n")
    terminal.expect("abab")
    terminal.interrupt()
    terminal.expect("(stopped)")
    terminal.expect(">>> ")
    os.write(terminal.master, b"/bye\n")
    assert terminal.end() == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--no-thinking"], "thinks: False"), (["--thinking"], "thinks: True"), ([], "thinks: unsaid")],
)
def test_thinking_reaches_the_models_own_template(
    rase: Rase, tmp_path: Path, flags: list[str], said: str
) -> None:
    template = "{{ raise_exception('thinks: ' ~ enable_thinking | default('unsaid')) }}"
    path = chain(tmp_path, ["H", "e"], name="thinker", chat_template=template)
    result = rase("run", path, "Hello", *flags)
    assert result.code == 2 and said in result.err
