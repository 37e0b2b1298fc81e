"""A model's tokenizer for tests: one id a byte, <s> before a text that wants special tokens."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.x }}{% endif %}</s>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if not enable_thinking is defined %}{% elif not enable_thinking %}quick{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """Its files, with a chat template, into a model's directory."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    fast = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
