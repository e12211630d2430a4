#!/usr/bin/env python3
"""Our models against Hugging Face's transformers, with random weights, both directions.

For each family: logits within 1e-5, greedy text equal, our export read by transformers with equal logits, and the losses
of a 20-step AdamW run within 5e-6. That run is in fp64: in fp32, two experts of nearly one score change places with the
kernels of a CPU, and from there on two right runs differ. Needs torch, transformers and the program nn_parity in the folder TUTTI_BIN.
Run: TUTTI_BIN=build/release/bin .venv/bin/python tests/parity/models.py
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]  # tokenizers.py lies beside us

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers

BIN = os.environ.get("TUTTI_BIN", os.path.join(HERE, "..", "..", "build", "release", "bin"))
BATCH, SEQUENCE, STEPS, LR = 3, 37, 20, 1e-3

SMALL = dict(vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def llama(**more):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL, **more)


FAMILIES = {
    "gpt2": lambda: (transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=101, n_embd=48, n_layer=3, n_head=6, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)),
    "llama": lambda: llama(num_key_value_heads=6),
    "llama_grouped_llama3": lambda: llama(num_key_value_heads=2, rope_parameters=LLAMA3),
    "llama_linear_tied": lambda: llama(num_key_value_heads=1, tie_word_embeddings=True,
                                       rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "mistral": lambda: (transformers.MistralForCausalLM, transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, head_dim=16, sliding_window=None)),
    "qwen2": lambda: (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(
        **SMALL, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": lambda: (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=16)),
    "mixtral": lambda: (transformers.MixtralForCausalLM, transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2)),
    "olmoe": lambda: (transformers.OlmoeForCausalLM, transformers.OlmoeConfig(
        **SMALL, num_key_value_heads=3, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False)),
    "qwen2_moe": lambda: (transformers.Qwen2MoeForCausalLM, transformers.Qwen2MoeConfig(
        **SMALL, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=48, norm_topk_prob=False, mlp_only_layers=[0])),
    "qwen3_moe": lambda: (transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig(
        **SMALL, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, norm_topk_prob=True)),
    "dots1": lambda: (transformers.Dots1ForCausalLM, transformers.Dots1Config(
        **SMALL, num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=24, n_group=4, topk_group=2, norm_topk_prob=True, first_k_dense_replace=1,
        routed_scaling_factor=2.5, sliding_window=None)),
}


def build(family):
    torch.manual_seed(1)
    kind, config = FAMILIES[family]()
    config._attn_implementation = config._experts_implementation = "eager"
    model = kind(config)
    with torch.no_grad():  # away from zeros and ones, so that biases and norms matter
        for name, p in model.named_parameters():
            p.add_(0.05 * torch.randn_like(p))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.add_(0.2 * torch.randn_like(b))
    return model.eval()


def tool(*args):
    done = subprocess.run([os.path.join(BIN, "nn_parity"), *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"nn_parity {args[0]} returned {done.returncode}: {done.stderr}")


class Parity(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.temp.name, "theirs")

    def tearDown(self):
        self.temp.cleanup()

    def path(self, name):
        return os.path.join(self.temp.name, name)

    def ours(self, verb, tokens, *more, dtype=np.float32):
        np.ascontiguousarray(tokens, dtype=np.int64).tofile(self.path("tokens"))
        tool(verb, self.folder, self.path("tokens"), *more)
        return np.fromfile(self.path("out"), dtype=dtype)

    def check_family(self, family):
        model = build(family)
        model.save_pretrained(self.folder)
        rng = np.random.default_rng(3)

        tokens = rng.integers(0, 101, (BATCH, SEQUENCE))
        with torch.no_grad():
            theirs = model(torch.from_numpy(tokens)).logits.numpy()
        ours = self.ours("logits", tokens, BATCH, SEQUENCE, self.path("out")).reshape(theirs.shape)
        scale = max(1.0, float(np.abs(theirs).max()))
        self.assertLess(float(np.abs(ours - theirs).max()) / scale, 1e-5, "logits")

        made = self.ours("generate", tokens[0, :5], 1, 5, self.path("out"), 12, dtype=np.int64)
        text = list(tokens[0, :5])
        with torch.no_grad():
            for _ in range(12):
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        self.assertEqual(list(made), [int(t) for t in text[5:]], "greedy text")

        tool("export", self.folder, self.path("exported"))
        back = transformers.AutoModelForCausalLM.from_pretrained(self.path("exported"), attn_implementation="eager").eval()
        with torch.no_grad():
            again = back(torch.from_numpy(tokens)).logits.numpy()
        self.assertLess(float(np.abs(again - theirs).max()), 1e-6, "exported")
        with open(os.path.join(self.path("exported"), "config.json")) as f:
            self.assertTrue(json.load(f)["architectures"][0].endswith(("ForCausalLM", "LMHeadModel")))

        steps = rng.integers(0, 101, (STEPS, BATCH, SEQUENCE + 1))
        ours = self.ours("train", steps, BATCH, SEQUENCE, self.path("out"), STEPS, LR, dtype=np.float64)
        with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64):  # models cast to them in places
            theirs = self.train(model.double(), steps)
        self.assertLess(float(np.abs(ours - theirs).max()), 5e-6, f"losses {ours} {theirs}")

    @staticmethod
    def train(model, steps):
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        losses = []
        for tokens in torch.from_numpy(steps):
            logits = model(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 101), tokens[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return np.array(losses)

    def test_unknown_architecture_is_refused_with_the_supported(self):
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, "config.json"), "w") as f:
            json.dump({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, f)
        done = subprocess.run([os.path.join(BIN, "nn_parity"), "logits", self.folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("Qwen3ForCausalLM", done.stderr)


for _family in FAMILIES:
    setattr(Parity, "test_" + _family, lambda self, family=_family: self.check_family(family))

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(unittest.main())
