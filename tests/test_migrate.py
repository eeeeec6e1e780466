"""docs/migrate.md names every option of the seeds, and only keys and values that we accept."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from services.console.config import ConsoleSettings
from services.learner.config.learner import LearnerSettings
from services.reward.config import RewardSettings
from services.reward.kinds import KINDS
from services.reward.protocol import ScorerConfig
from services.reward.rules.table import RULES
from services.rollout.config import RolloutSettings
from shared.config import TABLES, Settings, load_settings

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs/migrate.md").read_text()

# What the seeds' sources take, by the heading under which the guide maps it.
THEIRS = {
    "Flags of `train_ppo.py`": """
        prompt_dataset ptx_dataset plugin conversation_template_config grad_clip weight_decay warmup_steps
        tokenizer_dir tp pp sp enable_sequence_parallelism zero_stage zero_cpu_offload sp_mode pretrain
        rm_pretrain no_neural_reward_model checkpoint_path critic_checkpoint_path rm_checkpoint_path
        reward_functions save_path num_episodes num_collect_steps num_update_steps save_interval
        train_batch_size experience_batch_size ptx_batch_size lora_config mixed_precision accumulation_steps
        lr critic_lr kl_coef ptx_coef disable_loss_mask max_length max_seq_len log_dir use_wandb
        grad_checkpoint use_flash_attn""",
    "Fixed in ColossalChat's code": """
        gamma lam eps_clip value_clip vf_coef skip_threshold PolicyLoss.ratio_clamp PolicyLoss.loss
        ValueLoss.loss reward_clamp reward_placement action_mask temperature top_k do_sample use_cache
        stop_token_ids use_grpo num_generation inference_batch_size logits_forward_batch_size manual_seed
        betas lr_scheduler sample_buffer buffer_limit buffer_cpu_offload dataloader_pin_memory
        offload_inference_models use_tp callbacks""",
    "ColossalChat's files": """
        chat_template system_message stop_ids end_of_assistant response_format_tags messages gt_answer r
        lora_alpha linear_lora_dropout embedding_lora_dropout lora_train_bias lora_initialization_method
        target_modules""",
    "The detached trainer's arguments": """
        experience_maker_holder_name_list strategy_fn model_fn env_info train_batch_size buffer_limit
        eps_clip value_clip dataloader_pin_memory callbacks eval_performance debug update_lora_weights
        learning_rate total_steps update_steps train_epochs shard_size strategy_save_actor
        strategy_save_critic strategy_save_actor_optim strategy_save_critic_optim
        detached_trainer_name_list sync_models_from_trainers buffer_cpu_offload kl_coef generate_kwargs
        buffer_get_length buffer_append buffer_extend
        sync_models_to_remote_makers dataloader_fn num_epochs num_steps quant_bits quant_group_size""",
    "Fields of `PPOConfig`": """
        learning_rate logging_steps gradient_checkpointing bf16 lr_scheduler_kwargs dataset_num_proc
        num_mini_batches total_episodes local_rollout_forward_batch_size num_sample_generations
        response_length stop_token stop_token_id temperature missing_eos_penalty sft_model_path
        reward_model_path world_size num_total_batches micro_batch_size local_batch_size batch_size
        local_mini_batch_size mini_batch_size push_to_hub model_adapter_name ref_adapter_name
        num_ppo_epochs whiten_rewards kl_coef kl_estimator cliprange cliprange_value vf_coef gamma lam
        ds3_gather_for_generation""",
    "What it inherits, and the trainer's own arguments": """
        per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_grad_norm
        lr_scheduler_type warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon
        save_steps save_total_limit eval_steps seed report_to output_dir resume_from_checkpoint
        processing_class model ref_model reward_model value_model train_dataset eval_dataset peft_config
        callbacks""",
    "PPO arguments of LLaMA-Factory": """
        ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model
        ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters
        reward_model_quantization_bit reward_model_type""",
    "Fixed in its TRL 0.9.6": """
        init_kl_coef adap_kl_ctrl horizon kl_penalty gamma lam cliprange cliprange_value vf_coef
        ratio_threshold score_clip early_stopping target_kl""",
    "Its other arguments": """
        do_sample temperature top_p top_k num_beams max_new_tokens repetition_penalty model_name_or_path
        adapter_name_or_path finetuning_type lora_rank lora_alpha lora_dropout lora_target use_rslora
        create_new_adapter dataset template cutoff_len max_samples learning_rate num_train_epochs
        per_device_train_batch_size gradient_accumulation_steps lr_scheduler_type warmup_ratio
        enable_thinking max_grad_norm bf16 logging_steps save_steps output_dir plot_loss report_to
        resume_from_checkpoint""",
}
SCALARS = """
    train/max_ratio train/skip_ratio train/actor_loss train/critic_loss train/lr_actor train/lr_critic
    train/ptx_loss reward approx_kl value advantages"""
"""What ColossalChat's PPOTrainer logs."""
SETTINGS: dict[str, type[Settings]] = {
    "rollout": RolloutSettings,
    "reward": RewardSettings,
    "learner": LearnerSettings,
    "console": ConsoleSettings,
}
KEY = re.compile(rf"`((?:{'|'.join(TABLES)})(?:\.\w+)+)(?: = ([^`]+))?`")


class Row(NamedTuple):
    theirs: list[str]
    ours: str


def table(heading: str) -> list[list[str]]:
    """Cells of the table under a heading; the first row and the rule below it are no data."""
    section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", GUIDE, re.DOTALL | re.MULTILINE)
    assert section, f"the guide has no section {heading!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows(heading: str) -> list[Row]:
    cells = table(heading)
    assert all(len(row) == 4 for row in cells), [row for row in cells if len(row) != 4]
    return [Row(re.findall(r"`-{0,2}([\w.]+)`", row[0]), row[2]) for row in cells]


def fields(key: str) -> list[FieldInfo]:
    """Every declaration of `table.key`, or deeper: one, but for scorers, which are of several kinds."""
    table, *path = key.split(".")
    tables: list[type[BaseModel]] = [SETTINGS.get(table, Settings)]
    found: list[FieldInfo] = []
    for part in (table, *path):
        if ScorerConfig in tables and part not in ScorerConfig.model_fields:
            tables = [*KINDS.values(), *(row.table for row in RULES.values())]
            if not any(part in model.model_fields for model in tables):
                continue  # the name that the user gives the scorer
        found = [model.model_fields[part] for model in tables if part in model.model_fields]
        tables = [model for field in found for model in models_in(field.annotation)]
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


@pytest.mark.parametrize("heading", THEIRS)
def test_every_option_of_the_seeds_has_its_row_and_no_other_has(heading: str) -> None:
    named = [name for row in rows(heading) for name in row.theirs]
    assert sorted(named) == sorted(THEIRS[heading].split())


@pytest.mark.parametrize("heading", THEIRS)
def test_every_row_names_our_key_or_says_why_there_is_none(heading: str) -> None:
    for row in rows(heading):
        assert KEY.search(row.ours) or re.match(r"(none|not yet): \S", row.ours), row


def test_every_scalar_of_colossalchat_has_a_metric_that_is_explained() -> None:
    metrics = (ROOT / "docs/ppo.md").read_text()
    named = [(scalar.strip("`"), ours) for scalar, ours, *_ in table("ColossalChat's scalars")]
    assert sorted(scalar for scalar, _ in named) == sorted(SCALARS.split())
    for _, ours in named:
        found = re.findall(r"`([\w/]+)`", ours)
        assert found and all(f"`{name}`" in metrics for name in found), ours


@pytest.mark.parametrize("key, value", sorted(set(KEY.findall(GUIDE))))
def test_every_key_that_the_guide_names_exists_and_takes_the_value_given(key: str, value: str) -> None:
    found = fields(key)
    assert found, f"there is no {key}"
    if value:
        parsed = tomllib.loads(f"value = {value}")["value"]
        for field in found:
            kind: Any = Annotated[field.annotation, field]
            TypeAdapter(kind).validate_python(parsed)


@pytest.mark.parametrize("key", ["learner.kl_cof", "learner.lora.rnk", "reward.scorers.mine.adaptr"])
def test_a_key_that_does_not_exist_is_not_found(key: str) -> None:
    assert not fields(key)


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL))
def test_every_settings_block_of_the_guide_is_accepted(block: str) -> None:
    written = tomllib.loads(block)
    given = {"model": {"path": "model"}, **written}
    given["learner"] = {"prompts": "prompts.jsonl", **written.get("learner", {})}
    for kind in SETTINGS.values():
        kind.model_validate({name: table for name, table in given.items() if name in kind.model_fields})


def test_the_run_files_are_what_the_guide_says() -> None:
    named = re.findall(r"`configs/(\w+)\.toml`", GUIDE)
    rules, rlhf, math = (
        load_settings(LearnerSettings, ROOT / f"configs/{n}.toml", {}).learner for n in named
    )
    assert named == ["gsm8k_ppo", "rlhf_reward_model", "grpo_math"]
    assert rules.has_critic and rules.max_staleness == 0
    assert rlhf.has_critic and rlhf.lora and rlhf.adaptive_kl and rlhf.ptx and rlhf.ptx_coef
    assert not math.has_critic and math.completions_per_prompt > 1 and math.max_staleness == 1
    reward = load_settings(RewardSettings, ROOT / "configs/rlhf_reward_model.toml", {}).reward
    assert [scorer.kind for scorer in reward.scorers.values()] == ["neural"]
