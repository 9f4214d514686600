"""Turn text files into Megatron's indexed data sets.

    python preprocess_data.py --input corpus.jsonl --output-prefix data/corpus \\
        --tokenizer-type PretrainedFromHF --tokenizer-name-or-path model_folder --append-eod

The result, ``data/corpus_text_document.bin`` and ``.idx``, is what ``--data-path`` of
``pretrain_gpt.py`` takes: ``--data-path data/corpus_text_document``.
"""

from mindspeed_llm.console import entry_point
from mindspeed_llm.data.preprocess.command import main

if __name__ == "__main__":
    entry_point(main)
