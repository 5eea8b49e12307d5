"""Defects that runs on GPUs had, each as the text that mends it and the text that brings it back.

All of them stood where no GPU was: what is listed here fails a test that needs neither one nor a
NeMo-RL. Texts are short, so that few changes of the code touch them. See mutations.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mended:
    """One of them. `text` is in `file` once; `defective` in its place is the defect."""

    defect: str
    file: str
    text: str
    defective: str
    tests: tuple[str, ...]  # as pytest names them; any of them is enough


_NEMO_RL, _TESTS = "equipoise/train/nemo_rl", "tests/equipoise/train/nemo_rl"
_CONFIGURATION = f"{_TESTS}/test_configuration.py"
_LAUNCH, _HOOKS = "tests/equipoise/machine/test_launch.py", f"{_TESTS}/test_hooks.py"
_SCORING, _WHOLE_SETS = f"{_TESTS}/test_scoring.py", f"{_TESTS}/test_whole_sets.py"
_MACHINE = "tests/equipoise/machine/test_nemo_rl.py"
_REFUSED = "tests/equipoise/config/nemo_rl/test_rules.py::test_it_is_refused"

_START = (
    Mended(
        "a scheduler list without milestones",
        f"{_NEMO_RL}/configuration.py",
        'scheduler.append({"milestones": []})',
        "pass",
        (f"{_CONFIGURATION}::TestShipped::test_a_worker_builds_its_scheduler",),
    ),
    Mended(
        "a recipe that finds no Equipoise in NeMo-RL's Python",
        "recipes/grpo_fairness.py",
        "sys.path.append(",
        "print(",
        (f"{_LAUNCH}::test_a_python_that_has_no_equipoise_starts_a_recipe",),
    ),
    Mended(
        "packages that NeMo-RL's Python lacks are not put beside it",
        "equipoise/machine/launch.py",
        "missing = [name for name in BESIDE if installed_version(name) is None]",
        "missing: list[str] = []",
        (f"{_LAUNCH}::TestAPythonWithoutOurPackages",),
    ),
    Mended(
        "packages beside NeMo-RL's do not reach its process",
        "equipoise/machine/launch.py",
        "[*overlay, root]",
        "[root]",
        (f"{_LAUNCH}::TestVariables",),
    ),
    Mended(
        "uv replaces packages of NeMo-RL's environment",
        "hatch_build.py",
        "[Path(named)] if named else []",
        "[]",
        ("tests/test_build.py::test_uv_stops_before_it_changes_anything[command2]",),
    ),
    Mended(
        "training stays in the Python of the project, whose Ray the workers refuse",
        "equipoise/train/start.py",
        "hand_over(case.once(machine), reporter)",
        "pass",
        (f"{_LAUNCH}::TestARecipe::test_goes_on_in_nemo_rls_python_as_the_same_process",),
    ),
    Mended(
        "a driver with another Python or Ray than the workers is not refused",
        "equipoise/machine/nemo_rl.py",
        "[*mixed_versions(host)] or ",
        "",
        (f"{_MACHINE}::test_workers_with_another_python_or_ray",),
    ),
    Mended(
        "workers see every package that is installed beside Equipoise",
        "equipoise/machine/overlay.py",
        "    project = Path(equipoise.__file__).resolve().parents[1]\n",
        "    return Path(equipoise.__file__).resolve().parents[1]\n",
        (f"{_LAUNCH}::TestOverlay::test_our_packages_alone_are_in_their_folder",),
    ),
    Mended(
        "an installed Equipoise has no recipes and no configurations",
        "hatch_build.py",
        'build_data["force_include"] = ',
        'build_data["nothing"] = ',
        (f"{_LAUNCH}::test_an_installed_equipoise_has_recipes_and_configurations",),
    ),
)
_RESULT = (
    Mended(
        "the reference of Megatron's workers is compared with nothing",
        f"{_NEMO_RL}/reference_policy.py",
        'names = ("reference_model_state_dict", "reference_state_dict")',
        'names = ("reference_model_state_dict",)',
        (
            f"{_TESTS}/test_reference_policy.py::test_megatron_keeps_its_reference_under_another_name",
        ),
    ),
    Mended(
        "a signal is not looked at before the first step",
        f"{_NEMO_RL}/hooks.py",
        "if frozen and watch.stop_requested():",
        "if False:",
        (f"{_TESTS}/test_hooks.py::TestStagesInParts",),
    ),
    Mended(
        "what a killed start has drawn is drawn again",
        f"{_NEMO_RL}/hooks.py",
        "part = parts.read(number) if parts else None",
        "part = None",
        (f"{_TESTS}/test_hooks.py::TestStagesInParts",),
    ),
    Mended(
        "two policies in training and generation do not end a run",
        f"{_NEMO_RL}/watch.py",
        "exceeded = self.monitor.exceeded or self.mismatch.exceeded",
        "exceeded = self.monitor.exceeded",
        (f"{_TESTS}/test_watch.py::test_two_policies_in_training_and_generation_stop_the_run",),
    ),
    Mended(
        "an adapter on the output layer, which is the embeddings, by default",
        "nemo_configs/base.yaml",
        "exclude_modules: [lm_head]\n      match_all_linear: false",
        "exclude_modules: []\n      match_all_linear: true",
        (f"{_CONFIGURATION}::TestShipped::test_no_adapter_is_on_the_output_layer",),
    ),
    Mended(
        "an adapter on Megatron's output layer by default",
        "nemo_configs/base.yaml",
        "target_modules: [linear_qkv, linear_proj, linear_fc1, linear_fc2]",
        "target_modules: []",
        (f"{_CONFIGURATION}::TestShipped::test_no_adapter_is_on_the_output_layer",),
    ),
    Mended(
        "an adapter on the output layer, which is the embeddings, is not refused",
        "equipoise/config/nemo_rl/rules.py",
        "if adapts(layer, lora.target_modules, lora.exclude_modules):",
        "if False:",
        (_REFUSED,),
    ),
    Mended(
        "a resume moves the reference of the KL penalty",
        f"{_NEMO_RL}/reference_policy.py",
        'dtensor["enabled"] and dtensor["_v2"] and',
        "False and",
        (f"{_TESTS}/test_reference_policy.py::TestAResume",),
    ),
    Mended(
        "NeMo-RL builds its policy itself, and with it the reference",
        f"{_NEMO_RL}/hooks.py",
        "policy_with_first_reference(grpo.Policy, watch.job.run.ledger)",
        "grpo.Policy",
        (f"{_HOOKS}::test_everything_is_put_back_even_after_an_error",),
    ),
    Mended(
        "asynchronous rollouts are scored one by one",
        f"{_NEMO_RL}/hooks.py",
        "scored_together(grpo.run_async_multi_turn_rollout)",
        "grpo.run_async_multi_turn_rollout",
        (f"{_HOOKS}::test_asynchronous_rollouts_are_scored_by_one_call_in_the_batchs_order",),
    ),
    Mended(
        "a failed score without siblings becomes the reward 0",
        f"{_NEMO_RL}/scoring.py",
        "if number[rollout.prompt_id] == 1]",
        "if number[rollout.prompt_id] == 0]",
        (f"{_SCORING}::test_a_failure_that_comes_alone_never_becomes_a_number",),
    ),
    Mended(
        "backends whose rollouts reach the environment one by one are not refused",
        "equipoise/config/checks.py",
        "    _rollouts_come_in_groups,\n",
        "",
        ("tests/equipoise/config/test_checks.py",),
    ),
    Mended(
        "asynchronous GRPO without importance sampling, at which NeMo-RL stops, is not refused",
        "equipoise/config/nemo_rl/rules.py",
        "config.loss_fn.use_importance_sampling_correction,",
        "True,",
        (_REFUSED,),
    ),
)
_END = (
    Mended(
        "a model that cannot be exported ends the finished run with an error",
        f"{_NEMO_RL}/engine.py",
        "except ConversionError as error:",
        "except ZeroDivisionError as error:",
        (f"{_TESTS}/test_export.py::test_what_cannot_be_made_is_said_and_ends_no_run",),
    ),
    Mended(
        "NeMo-RL's converter is named without the base that it needs",
        f"{_NEMO_RL}/checkpoints.py",
        "--base-ckpt {base} ",
        "",
        (f"{_TESTS}/test_checkpoints.py::test_nemo_rl_has_a_converter_for_each_of_its_backends",),
    ),
    Mended(
        "all weights in DTensor's shards are not exported",
        "equipoise/checkpoints/sources.py",
        "if ranks := len(shards(path)):",
        "if ranks := 0 * len(shards(path)):",
        (
            "tests/equipoise/checkpoints/test_to_hugging_face.py::TestDTensor::test_shards_of_two_ranks",
        ),
    ),
    Mended(
        "Ray starts the environment's actor on any node",
        f"{_NEMO_RL}/actor.py",
        "options |= beside_driver()",
        "pass",
        (f"{_TESTS}/test_actor.py::TestPlacement",),
    ),
    Mended(
        "the actor's cache is in the home folder of whatever node it is on",
        f"{_NEMO_RL}/configuration.py",
        "_absolute(Path(ours.cache_dir).expanduser())",
        "ours.cache_dir",
        (f"{_CONFIGURATION}::TestShipped::test_no_path_depends_on_the_node_or_its_user",),
    ),
    Mended(
        "an actor that does not see the driver's files goes on until it needs them",
        f"{_NEMO_RL}/watch.py",
        "        refuse_other_view(self.job, scorer)\n",
        "",
        (f"{_TESTS}/test_watch.py::test_an_actor_that_does_not_see_the_drivers_files_is_refused",),
    ),
    Mended(
        "without a Ray cluster several nodes are waited for on one",
        "equipoise/machine/nemo_rl.py",
        "elif cluster.num_nodes > 1:",
        "elif cluster.num_nodes < 1:",
        (f"{_MACHINE}::test_several_nodes_need_a_cluster_that_runs",),
    ),
    Mended(
        "a dry run does not say how the run is queued on Slurm",
        "equipoise/train/stages/dry_run.py",
        'reporter.say(f"on Slurm: {sbatch_line(loaded.config, sys.argv, hours)}")',
        "del hours",
        ("tests/equipoise/train/stages/test_dry_run.py",),
    ),
    Mended(
        "every node looks for the converted model in a folder of its own",
        "equipoise/machine/nemo_rl.py",
        "if config.cluster.num_nodes > 1 and not any(",
        "if config.cluster.num_nodes < 1 and not any(",
        (f"{_MACHINE}::test_megatron_needs_its_variables",),
    ),
    Mended(
        "Megatron's workers start without the architectures that they compile for",
        "equipoise/machine/nemo_rl.py",
        "if not environment.get(_ARCHITECTURES):",
        "if False:",
        (f"{_MACHINE}::test_megatron_needs_its_variables",),
    ),
    Mended(
        "an actor that Ray restarts has no reference",
        f"{_NEMO_RL}/actor.py",
        "if self._reference.exists():",
        "if False:",
        (f"{_TESTS}/test_actor.py::TestARestart",),
    ),
    Mended(
        "a driver's node without GPUs is refused, whatever the cluster has",
        "equipoise/machine/nemo_rl.py",
        "elif info.cluster is not None:",
        "elif info.cluster is not None and info.gpus:",
        (f"{_MACHINE}::test_a_running_cluster_counts_instead_of_this_machine",),
    ),
)
_ASYNCHRONOUS = (
    Mended(
        "a part of a counterfactual set comes into the replay buffer",
        f"{_NEMO_RL}/whole_sets.py",
        "if len(groups) < self._set_size:",
        "if not groups:",
        (f"{_WHOLE_SETS}::test_a_part_of_a_set_is_not_in_the_buffer",),
    ),
    Mended(
        "asynchronous GRPO takes groups whose sets were not scored",
        f"{_NEMO_RL}/whole_sets.py",
        '        score(self._environment, sampled["trajectories"])\n',
        "",
        (f"{_WHOLE_SETS}::test_a_step_is_scored_by_one_call_and_every_group_gets_its_rewards",),
    ),
    Mended(
        "asynchronous GRPO waits for prompts that are used up",
        f"{_NEMO_RL}/whole_sets.py",
        "    if spent:\n",
        "    if False:\n",
        (f"{_WHOLE_SETS}::test_a_step_that_nothing_will_fill_is_an_error",),
    ),
    Mended(
        "the end of the prompts is told before the last groups are there",
        f"{_NEMO_RL}/whole_sets.py",
        "        self.wait_for_pending_generations()\n",
        "",
        (f"{_WHOLE_SETS}::test_what_is_on_its_way_comes_before_the_end_is_told",),
    ),
    Mended(
        "nothing is generated again for a step whose group failed",
        f"{_NEMO_RL}/whole_sets.py",
        "sorted({generation_weight_version, *later})",
        "later",
        (f"{_WHOLE_SETS}::test_a_step_lacking_a_group_is_generated_for_again",),
    ),
    Mended(
        "an error that the asynchronous loop swallows is not told",
        f"{_NEMO_RL}/hooks.py",
        "        if watch.error:\n            raise watch.error\n        if not watch.ended:",
        "        if not watch.ended:",
        (f"{_HOOKS}::TestAsynchronousGrpo::test_an_error_that_its_loop_swallows_is_raised",),
    ),
    Mended(
        "asynchronous training that ends early counts as finished",
        f"{_NEMO_RL}/hooks.py",
        "if not watch.ended:",
        "if False:",
        (f"{_HOOKS}::TestAsynchronousGrpo::test_an_end_before_the_last_step_is_an_error",),
    ),
    Mended(
        "rollouts of an evaluation lie in the order in which they ended",
        f"{_NEMO_RL}/hooks.py",
        "[self._by_row[row] for row in sorted(self._by_row)]",
        "list(self._by_row.values())",
        (f"{_HOOKS}::test_evaluation_keeps_the_order_that_was_asked_for",),
    ),
    Mended(
        "an evaluation counts replies that were not generated",
        f"{_NEMO_RL}/hooks.py",
        "if missing := sum(not is_generated",
        "if missing := 0 * sum(not is_generated",
        (f"{_HOOKS}::test_evaluation_ends_where_a_reply_was_not_generated",),
    ),
    Mended(
        "a failed score becomes the reward 0 beside its siblings",
        f"{_NEMO_RL}/scoring.py",
        "means[rollout.prompt_id] if score.value is None else score.value",
        "score.value or 0.0",
        (f"{_SCORING}::test_rewards_come_in_order_and_the_summary_once",),
    ),
    Mended(
        "a reply that was not generated is scored as an empty one",
        f"{_NEMO_RL}/scoring.py",
        "if not present}",
        "if present is None}",
        (f"{_SCORING}::test_a_reply_that_was_not_generated_costs_its_own_group_alone",),
    ),
)
MENDED = (*_START, *_RESULT, *_END, *_ASYNCHRONOUS)
