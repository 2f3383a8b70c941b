"""Bug cases SEC: a model file's chat template is a program of a stranger."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from rase.errors import ChatTemplateError
from rase.text.chat import ChatTemplate
from rase.text.select import choose_template

USER = [{"role": "user", "content": "Hi"}]


def refused(source: str, **options: object) -> ChatTemplateError:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate.from_source(source, bos="<s>", eos="</s>").render(USER, **options)
    return caught.value


REACH = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ [{}]|map(attribute='__class__')|first }}",
    "{{ messages|selectattr('__class__')|list }}",
    "{{ (messages|groupby('__class__'))|list }}",
    "{{ messages|sort(attribute='__class__') }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "{{ cycler }}{{ cycler('a').next() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('touch MARKER').read() }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('__cla'+'ss__')|attr('__base__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{0}'.format(1) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ ('%s' % 1).format }}",
    "{{ messages[0].content.format }}",
    "{{ bos_token.format(1) }}",
    "{{ ['{0.__class__}']|map('format', 1)|list }}",
    "{{ '%(a)s' % {'a': 1} }}",
    "{{ range.__self__ }}",
    "{{ range.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__code__ }}",
    "{{ namespace.__init__ }}",
    "{{ dict.__class__ }}",
    "{{ dict.mro() }}",
    "{{ self.__class__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ loop.__class__ }}",
    "{% for x in messages %}{{ loop._iterator }}{% endfor %}",
    "{% for x in messages %}{{ loop.__init__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% macro m() %}{{ caller._func }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].clear() }}",
    "{{ messages.sort() }}",
    "{{ bos_token._runs }}",
    "{{ bos_token.encode() }}",
    "{{ bos_token.translate({}) }}",
    "{{ 'a'.center(10) }}",
    "{{ 1 .__add__ }}",
    "{{ (1).to_bytes(4, 'big') }}",
    "{{ undefined_name.__class__ }}",
    "{{ undefined_name() }}",
    "{{ environment }}{{ environment.globals }}",
    "{{ context.call }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as p %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages|tojson(default=range) }}",
    "{{ messages|pprint }}",
    "{{ 'a'|xmlattr }}",
    "{{ messages|random }}",
    "{{ debug() }}",
]


@pytest.mark.parametrize("source", REACH)
def test_sec_1_reaching_out_of_the_template_is_refused(source: str, tmp_path: Path) -> None:
    marker, loaded = tmp_path / "marker", set(sys.modules)
    started = time.process_time()
    refused(source.replace("MARKER", str(marker)))
    assert time.process_time() - started < 1
    assert not marker.exists()
    assert not {"subprocess", "pty"} & (set(sys.modules) - loaded)


GREEDY = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [1] * 10**10 }}",
    "{{ 10**(10**10) }}",
    "{{ (10**60)**60 }}",
    "{{ (2**64)**64 * (2**64)**64 }}",
    "{% set ns = namespace(x=7) %}{% for i in range(99999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ range(10**9)|list|length }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if j > i %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endset %}{{ x|length }}",
    "{% macro m() %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endmacro %}{% set x = m() %}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = [x, x]|join %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x.replace('a', 'aa') %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x|replace('a', 'aa') %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = 'a'.join(x) %}" * 40,
    "{% set x = 'aaaaaaaa' %}" + "{% set x = '%s%s' % (x, x) %}" * 40,
    "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
    "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x|tojson }}",
    "{% set x = [1] %}{% set y = [1] %}" + "{% set x = [x, x] %}{% set y = [y, y] %}" * 60 + "{{ x == y }}",
    "{% set x = {'a': 1} %}" + "{% set x = dict(a=x, b=x) %}" * 60 + "{{ x|string }}",
    "{% set n = namespace(a=1) %}" + "{% set n = namespace(a=n, b=n) %}" * 60 + "{{ n }}",
    "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n }}",
    "{% set x = [1] %}" + "{% set x = x + x %}" * 40,
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ 'a'|indent('a' * 10**6) }}",
    "{{ [[1]]|tojson(indent=10**9) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ 'a'|wordwrap(1) }}",
    "{{ [1]|batch(10**9, 0)|list }}",
    "{{ 1.5|round(10**9, 'ceil') }}",
    "{{ range(99999)|map('string')|join(',' * 9999) }}",
    "{{ (range(9999)|list)|sum(start=[]) }}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 400 + "]" * 400 + " }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{% for x in [1] %}" * 60 + "{% endfor %}" * 60,
    "{{ 1" + "0" * 6000 + " }}",
    "a" * 600_000,
    "{{ strftime_now('%Y' * 100000) }}",
]


@pytest.mark.parametrize("source", GREEDY, ids=lambda source: source[:48])
def test_sec_1_asking_for_too_much_is_refused_in_time(source: str) -> None:
    started = time.process_time()
    refused(source)
    assert time.process_time() - started < 3  # the limit is 1 s of processor time


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{% set x = 'a' * 9999 %}{% set y = 'b' * 99999 %}{{ x.replace('a', y) }}",
        "{% set x = 'a' * 9999 %}{% set y = 'b' * 99999 %}{{ x|replace('a', y) }}",
        "{% set x = 'a' * 9999 %}{% set y = 'b' * 99999 %}{{ y.join(x) }}",
        "{% set x = 'a' * 9999 %}{% set y = 'b' * 99999 %}{{ x|join(y) }}",
        "{% set y = 'b\n' * 999999 %}{{ y|indent(64) }}",
        "{% set x = 'b' * 3999999 %}{{ " + "x ~ " * 40 + "x }}",
        "{% set x = 'b' * 3999999 %}{% set y %}" + "{{ x }}" * 40 + "{% endset %}",
    ],
)
def test_sec_1_a_long_text_is_refused_before_it_is_made(source: str) -> None:
    tracemalloc.start()
    try:
        assert "too much" in str(refused(source))
        assert tracemalloc.get_traced_memory()[1] < 80e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% set x = messages[0].content + 'a' == 'b' %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = messages[0].content[1:] %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = messages[0].content|trim %}{% endfor %}",
        "{% for i in range(99999) %}{% if 'b' in messages[0].content %}{% endif %}{% endfor %}",
        "{% for c in messages[0].content %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = messages[0].content.split('a') %}{% endfor %}",
    ],
)
def test_sec_1_long_messages_do_not_make_it_slow(source: str) -> None:
    template = ChatTemplate.from_source(source)
    started = time.process_time()
    with pytest.raises(ChatTemplateError, match="too much"):
        template.render([{"role": "user", "content": "a" * 2_000_000}])
    assert time.process_time() - started < 3


def test_sec_1_a_bad_template_in_a_file_does_not_stop_loading() -> None:
    """Completions of such a model work; only a chat is refused, with what to do."""
    template = choose_template(None, {"tokenizer.chat_template": "{% if %}"}, "chatml")
    assert template is not None
    with pytest.raises(ChatTemplateError, match=r"line 1.*--chat-template"):
        template.render(USER)


def test_sec_1_a_template_refuses_with_its_own_words() -> None:
    assert "roles must alternate" in str(refused("{{ raise_exception('roles must alternate') }}"))


def test_sec_1_threads_have_budgets_of_their_own() -> None:
    good = ChatTemplate.from_source("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}")
    bad = ChatTemplate.from_source(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    results: list[object] = []

    def run(template: ChatTemplate) -> None:
        try:
            results.append(template.render(USER))
        except ChatTemplateError as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(template,)) for template in (bad, good, bad, good)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result == "Hi" * 1000 for result in results) == 2
    assert sum(isinstance(result, ChatTemplateError) for result in results) == 2


def test_sec_1_a_large_honest_conversation_is_no_attack() -> None:
    template = ChatTemplate.from_source(
        "{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' + '\n' }}{% endfor %}"
    )
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 1600} for i in range(1000)]
    started = time.process_time()
    prompt = template.render(messages)
    assert prompt.count("<|im_start|>") == 1000 and len(prompt) > 8_000_000 - 1000
    assert time.process_time() - started < 2
