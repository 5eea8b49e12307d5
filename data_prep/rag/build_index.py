"""Builds the index of a corpus before any run, with vectors where an encoder is wanted.

    python -m data_prep.rag.build_index --corpus textbooks.jsonl --output indexes/textbooks
    python -m data_prep.rag.build_index --corpus notes/ --output indexes/notes --encoder
    python -m data_prep.rag.build_index --corpus hf://datasets/MedRAG/textbooks --output indexes/t

A run that names the folder in `env.rag.index` takes it as it is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_prep.hub import local_copy
from data_prep.packaged_models import PackagedModelError
from data_prep.rag.index import build_index, corpus_hash, read_corpus
from environments.contract import EncoderSettings
from environments.rag.retrieval import MANIFEST


def main(arguments: Sequence[str] | None = None) -> None:
    """Build an index from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.rag.build_index", description=main.__doc__
    )
    parser.add_argument("--corpus", required=True, metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--encoder",
        nargs="*",
        metavar="MODEL",
        help="vectors too; a model for queries and one for passages, or one for both "
        f"(default: {EncoderSettings().query_model} and {EncoderSettings().passage_model})",
    )
    parser.add_argument("--rebuild", action="store_true", help="replace an index that is there")
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.rebuild:
        parser.error(f"{options.output} exists; --rebuild replaces it")
    if options.output.exists() and not (options.output / MANIFEST).is_file():
        parser.error(f"{options.output} is no index, so it is not replaced")
    try:
        encoder = None
        if options.encoder is not None:
            from data_prep.rag.encoder import HuggingFaceEncoder  # imports torch

            models = options.encoder
            names = {"query_model": models[0], "passage_model": models[-1]} if models else {}
            encoder = HuggingFaceEncoder(EncoderSettings(**names))
        path = local_copy(options.corpus)
        manifest = build_index(read_corpus(path), corpus_hash(path), options.output, encoder)
    except PackagedModelError as error:
        parser.exit(1, f"error: {error}\n{error.remedy}\n")
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print(f"{options.output}: {manifest.passages:,} passages, {manifest.corpus}")  # noqa: T201


if __name__ == "__main__":
    main()
