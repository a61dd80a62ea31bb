# make train   install into a virtual environment and train
# make test    install what the tests need, check the style, run the tests
# make check   the style and the types alone, which takes seconds
# make coverage   make test, and what it executes of the package
# make docs    build the documentation in English and Chinese; warnings are errors.
#              REPOSITORY_URL=https://github.com/NAME/paddle_mnist adds links to source and editing
PYTHON ?= python3
VENV ?= .venv
# Another Paddle than the newest: make test VENV=.venv-2.6 PINS='paddlepaddle==2.6.2 numpy<2'
PINS ?=
ARGS ?=

RUN = $(VENV)/bin
SITE = $(RUN)/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet -c docs

# The many processes of the tests compile the package once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test check coverage test-slow test-release docs clean
train: $(VENV)/.installed
	$(RUN)/python tools/train.py $(ARGS)

test: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/python -m pytest -n 3 -m "not slow" $(ARGS)

check: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

coverage:
	$(MAKE) test ARGS='--cov --cov-report=term $(ARGS)'

test-slow: SLOW = slow and not release
test-release: SLOW = release
test-slow test-release: $(VENV)/.installed-test
	$(RUN)/pip install --quiet -e '.[cpu,test,browser,docs,elastic,mirror,notebook,onnx,web]' $(foreach pin,$(PINS),'$(pin)')
	$(RUN)/python -m pytest -n 3 -m "$(SLOW)" --durations 20 $(ARGS)

docs: $(VENV)/.installed
	$(RUN)/pip install --quiet -e '.[cpu,docs,pictures]' $(foreach pin,$(PINS),'$(pin)')
	$(SITE) docs/en build/site/en
	$(SITE) -D language=zh_CN docs/zh build/site/zh
	cp docs/index.html build/site/
	@echo "the site: build/site/index.html"

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg | $(VENV)/bin/pip
	@echo "installing into $(VENV), which takes some minutes and 1.6 GB the first time"
	$(RUN)/pip install --quiet -e '.[cpu,pictures]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

$(VENV)/.installed-test: setup.cfg $(VENV)/.installed
	$(RUN)/pip install --quiet -e '.[cpu,mirror,test]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

clean:
	rm -rf $(VENV)
