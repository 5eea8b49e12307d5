"""What a reader is shown of the task."""

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
        "vote_accuracy": Words(
            "vote accuracy", "questions that the most frequent reply gets right"
        ),
        "ceiling": Words("ceiling", "accuracy if all that can be answered were right"),
        "by_class": Words("By right answer"),
        "confusion": Words("Confusion matrix, in replies"),
    },
)
