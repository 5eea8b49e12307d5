"""What makes prompt records and the tiny local models; one module per task.

A task's YAML names its module in `equipoise.data.module`, which exposes:

    PromptSettings      pydantic model, extra="forbid", frozen: the keys of `equipoise.data`;
                        `num_samples`, which the scales set, is how many prompts are made
    build_prompts(settings: PromptSettings) -> list[PromptRecord]

and, when a task needs more than prompts, such as an index, or plans that a model makes,

    prepare(settings, tools: Tools)         makes what is missing, before the prompts are built
    check(settings, records, environment)   rows (what, figure, note) for `--dry-run`, after it went
                                            through its parts once; both raise `ValueError`

and, when there are prompts that the task cannot score or must never train on,

    prompt_problems(records) -> list[str]   what is wrong with prompts, wherever they come from

and, when the task comes with a small model of its own for machines without a GPU:

    LocalModelSettings  the same for `equipoise.local_model`
    LOCAL_MODEL_NOTICE  one paragraph: what the local model is and what it says nothing about
    build_local_model(records, settings: LocalModelSettings, cache: Path) -> Path

`build_prompts` gives every record its split ("train", "validation", "test", and "control" where
the environment asks for controls), keeps counterfactual sets whole, and depends on nothing but
its settings. `build_local_model` returns a folder that `AutoModelForCausalLM.from_pretrained`
reads, and shows the model no prompt of an evaluation split. Importing a module must stay cheap:
torch is imported where it is needed.
"""
