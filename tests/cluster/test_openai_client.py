"""The stock ``openai`` client over replicas: the tests of the server, as they are."""

from __future__ import annotations

from tests.server.test_openai_client import (  # noqa: F401
    client,
    test_chat,
    test_chat_stream,
    test_completions,
    test_errors_are_the_clients_classes_and_are_not_repeated,
    test_extensions_in_extra_body,
    test_leaving_a_stream_early_frees_the_model,
    test_models,
    test_structured_output_fails_closed,
    test_the_async_client,
    test_the_stream_helper,
)
