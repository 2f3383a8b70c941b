"""Make the goldens of this folder with transformers, which converts GGUF vocabularies by its own code.

Run in a throw-away environment (torch and transformers are no dependencies of rase):

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch transformers gguf sentencepiece
    /tmp/goldens/bin/python tests/text/goldens/make_goldens.py SMOLLM2.gguf GEMMA.gguf

Made with transformers 5.24.0 and tokenizers 0.23.3, from the texts of tests/support/texts.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from tests.support.texts import PROSE, generated_texts  # noqa: E402

CHATS = {
    "user": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi\n"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "안녕 😸\n\n1234"},
    ],
    "only system": [{"role": "system", "content": "S"}],
    "closed": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure, here"}],
}


def main(smollm2: Path, gemma: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    for name, path, specials in (
        ("smollm2", smollm2, ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\n")),
        ("gemma", gemma, ("<start_of_turn>", "<end_of_turn>\n", "<bos>", "<table>", "   ", "\n\n\n")),
    ):
        reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        if name == "smollm2":
            # That conversion does not know the pre-tokenizer "smollm"; this is the one of its tokenizer.json.
            reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        texts = [*PROSE, *generated_texts(300, 11, specials)]
        ids = [reference(text, add_special_tokens=False)["input_ids"] for text in texts]
        data = {"specials": specials, "texts": texts, "ids": ids, "bos": reference("a")["input_ids"]}
        if reference.chat_template:
            data["chats"] = [
                {
                    "name": chat,
                    "messages": messages,
                    "add_generation_prompt": prompt,
                    "text": reference.apply_chat_template(
                        messages, tokenize=False, add_generation_prompt=prompt
                    ),
                    "ids": list(
                        reference.apply_chat_template(
                            messages, tokenize=True, add_generation_prompt=prompt, return_dict=True
                        )["input_ids"]
                    ),
                }
                for chat, messages in CHATS.items()
                for prompt in (True, False)
            ]
        target = HERE / f"{name}.json"
        target.write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(target, target.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
