"""Presentation of the task: what was searched for, found and answered."""

from environments.presentation import Column, Presentation, ReplyTable, Words

PRESENTATION = Presentation(
    title="RAG",
    words={
        "accuracy": Words("accuracy", "right answers; a reply that cannot be read is wrong"),
        "accuracy_without_answer": Words(
            "accuracy without an answer in a query", "of the replies whose queries name no option"
        ),
        "answer_in_query": Words(
            "answer in a query", "replies whose queries name an option that the question does not"
        ),
        "retrieval_recall": Words("retrieval recall", "relevant documents that were found"),
        "on_question_rate": Words(
            "on-question rate", "replies of which a query names what the question asks for"
        ),
        "copied_plan": Words("copied plan", "searches for the words of the plan"),
        "copied_question": Words("copied question", "searches for the sentences of the question"),
        "copied_options": Words("copied options", "searches for the options of the question"),
        "by_stratum": Words("By what was held out"),
        "format_rate": Words("format rate", "replies that keep the whole format"),
        "defect_rate": Words("defect rate", "queries with a defect"),
        "documents_read": Words("documents read", "mean number for one question"),
    },
    table=ReplyTable(
        "Questions side by side",
        "What was searched for, found and answered",
        (
            Column("Queries", "queries"),
            Column("Documents found", "documents"),
            Column("Answer", "answer", gold="gold"),
        ),
    ),
)
