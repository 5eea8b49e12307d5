"""Presentation of the task's metrics."""

from environments.presentation import Presentation, Words

PRESENTATION = Presentation(
    title="PubMedQA",
    words={
        "accuracy": Words("accuracy", "right answers; a reply that cannot be read is wrong"),
        "macro_f1": Words("macro F1", "mean F1 of the answers, each counting alike"),
        "f1": Words("F1"),
        "parse_rate": Words("parse rate", "replies in a form that can be read"),
        "majority_baseline": Words(
            "majority baseline", "accuracy of always giving the commonest answer"
        ),
        "format_rate": Words("format rate", "replies that keep the whole format"),
        "grounded_rate": Words(
            "grounded replies", "they quote the finding that decides, and make nothing up"
        ),
        "false_quote_rate": Words(
            "made-up quotes", "right answers with a quote that is not in the abstract"
        ),
        "false_number_rate": Words(
            "made-up numbers", "right answers with a number that is not in the abstract"
        ),
        "decisive_quote_rate": Words(
            "decisive quotes", "right answers that quote the finding which decides"
        ),
        "vote_accuracy": Words(
            "vote accuracy", "questions that the most frequent reply gets right"
        ),
        "ceiling": Words("ceiling", "accuracy if all that can be answered were right"),
        **{
            f"commonest answer, {finding}": Words(
                f"commonest answer, {finding}",
                f"gives every question the model's commonest answer, and as its reason {meaning}",
            )
            for finding, meaning in {
                "first finding": "the first sentence of the findings",
                "last finding": "the last sentence of the findings",
                "any finding": "a sentence of the findings by chance",
                "finding closest to the question": "the finding that shares most words with it",
                "first words of each finding": "the first words of all findings",
            }.items()
        },
        "by_class": Words("By right answer"),
        "confusion": Words("Confusion matrix, in replies"),
    },
)
