"""The names of the providers that LiteLLM knows, so that an agent's file can be checked without importing it."""

from typing import Final

_ROWS: Final = (
    "a2a a2a_agent ai21 ai21_chat aiml aiohttp_openai amazon_nova anthropic anthropic_text apertis assemblyai",
    "auto_router aws_polly aws_textract azure azure_ai azure_speech azure_text baseten bedrock bedrock_mantle",
    "black_forest_labs bytez cerebras charity_engine chatgpt chutes clarifai cloudflare codestral cognition",
    "cohere cohere_chat cometapi compactifai cortecs cursor custom custom_openai darkbloom dashscope databricks",
    "datarobot deepgram deepinfra deepseek docker_model_runner dotprompt edenai elevenlabs empower fal_ai",
    "featherless_ai fireworks_ai friendliai galadriel gdc gemini gigachat github github_copilot gradient_ai groq",
    "helicone heroku hosted_vllm huggingface humanloop hyperbolic inception infinity jina_ai lambda_ai langflow",
    "langfuse langgraph lemonade libertai litellm_agent litellm_proxy llamafile lm_studio manus maritalk meta",
    "meta_llama milvus minimax mistral modelscope mongodb moonshot morph nadir nano-gpt nebius neosantara",
    "nlp_cloud novita nscale nvidia_nim nvidia_riva oci ollama ollama_chat oobabooga openai openai_like",
    "openrouter ovhcloud parasail perplexity petals pg_vector pinstripes poe predibase prism publicai",
    "qwen_ai_platform qwencloud ragflow recraft reducto reka replicate runwayml s3_vectors sagemaker",
    "sagemaker_chat sagemaker_nova sail sambanova sap scaleway scx-ai snowflake soniox stability strands_decider",
    "synthetic tencent tensormesh text-completion-codestral text-completion-inception text-completion-openai",
    "together_ai topaz transcribe triton typesafe v0 valkey vercel_ai_gateway vertex_ai vertex_ai_beta vllm",
    "volcengine voyage wandb watsonx watsonx_text xai xiaomi_mimo xinference zai",
)
PROVIDERS: Final = frozenset(name for row in _ROWS for name in row.split())
