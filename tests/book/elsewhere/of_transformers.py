"""transformers: its calls, the arguments of `generate` and of `from_pretrained`, and its commands, as of version 5."""

from tokenmill.cli.elsewhere.named import Named

CALLS = (
    Named(
        'model = AutoModelForCausalLM.from_pretrained("MODEL")', 'engine = tokenmill.load("MODEL")', "with tokenizer"
    ),
    Named("from_pretrained(..., dtype=torch.bfloat16)", 'tokenmill.load("MODEL", dtype=torch.bfloat16)'),
    Named('from_pretrained(..., device_map="cuda")', 'tokenmill.load("MODEL", device="cuda")'),
    Named("from_pretrained(..., quantization_config=...)", 'tokenmill.load("MODEL", scheme="q4")'),
    Named('from_pretrained(..., gguf_file="FILE")', 'tokenmill.load("FILE")'),
    Named("tokenizer(text).input_ids", "engine.encode(text)"),
    Named("tokenizer.apply_chat_template(messages)", "engine.chat_prompt(messages)"),
    Named("model.generate(**inputs)", "engine.generate(text)", "a text, or token ids; no padding, no mask"),
    Named("tokenizer.decode(ids)", "done.text"),
    Named("model(**inputs).logits", "engine.logits(text)", "[tokens, vocabulary], float32"),
    Named('pipeline("text-generation")(text)', "engine.generate(text)"),
    Named("TextStreamer, TextIteratorStreamer", "engine.stream(text)"),
    Named("past_key_values=cache", "session = engine.session(text)", "it grows, forks, goes to disk"),
    Named("copy.deepcopy(cache)", "session.fork()"),
    Named("cache.crop(n)", "session.rewind(n)"),
    Named('StaticCache, cache_implementation="static"', 'tokenmill.load("MODEL", max_length=2048)', "always"),
    Named("torch.compile(model.forward)", 'tokenmill.load("MODEL", program="compiled")'),
    Named("model.generate_batch(prompts)", "engine.generate(prompts)", "with `max_sequences`"),
    Named("set_seed(7)", "engine.generate(text, temperature=1.0, seed=7)"),
)
ARGUMENTS = (
    *map(Named, ("max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")),
    Named("do_sample", "temperature", "above 0 samples; the default, 0, is greedy"),
    Named("max_length", "max_new_tokens", "of the new tokens; `max_length` of `load` is the context"),
    Named("num_return_sequences", "n"),
    Named("stop_strings", "stop"),
    Named("eos_token_id", "stop_token_ids", "beside the model's own"),
    Named("bad_words_ids", "bad_words", "as texts"),
    Named("sequence_bias", "logit_bias", "of single tokens"),
    Named("suppress_tokens", "logit_bias", "with minus infinity"),
    Named("assistant_model", "draft_model", "of `load`"),
    Named("prompt_lookup_num_tokens", "speculate", 'of `load`: `"suffix"`, and part of `"auto"`'),
    Named("use_cache", "cache", "of `load`"),
    Named("cache_implementation", "block_size", "of `load`"),
    Named("output_logits, output_scores", "logprobs"),
    Named("num_beams", "", "no beam search"),
    Named("no_repeat_ngram_size, typical_p, epsilon_cutoff, eta_cutoff", "", "not among the samplers"),
    Named("penalty_alpha, dola_layers, guidance_scale"),
    Named("pad_token_id", "-", "nothing is padded"),
)
COMMANDS = (
    Named("transformers serve", "tokenmill serve MODEL"),
    Named("transformers chat MODEL", "tokenmill chat MODEL"),
    Named("hf download OWNER/NAME", "tokenmill pull OWNER/NAME"),
    Named("hf cache ls", ("tokenmill list", "tokenmill cache list")),
    Named("model.save_pretrained(DIR)", "tokenmill pull MODEL -o DIR"),
)
LISTS = {"calls": CALLS, "arguments": ARGUMENTS, "commands": COMMANDS}
