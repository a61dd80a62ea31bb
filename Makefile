# make train   install into a virtual environment and train
# make test    install what the tests need, check the style, run the fast tests
# make check   check the style and the types alone
# make coverage   make test, and what it executes of the package
# make test-release   every test, before a release; PART=2/4 runs a quarter of the slow ones alone
# make upstream   say which defects of Paddle and VisualDL, worked around here, are fixed; one alone:
#              ARGS=tools/upstream/NAME.py
# make docs    build the documentation in English and Chinese; warnings are errors.
#              REPOSITORY_URL=https://github.com/NAME/paddle_mnist adds links to source and editing
# make release   build the source distribution and the wheel of the last commit into dist/, install each
#              into a new environment, train and read a picture there; nothing is tagged or uploaded
PYTHON ?= python3
VENV ?= .venv
# Another Paddle than the newest: make test VENV=.venv-2.6 PINS='paddlepaddle==2.6.2 numpy<2'
PINS ?=
ARGS ?=
PART ?=
# The parameter servers of Paddle 2.6.2 need a protobuf that no newer Python has.
PYTHON_OF_SERVERS ?= PYENV_VERSION=3.10 python3.10
PINS_OF_SERVERS = paddlepaddle==2.6.2 numpy<2 protobuf<3.21 setuptools<70

RUN = $(VENV)/bin
SITE = $(RUN)/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet -c docs

# The many processes of the tests compile the package once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test check coverage test-slow test-servers test-release upstream docs release clean
train: $(VENV)/.installed
	$(RUN)/python tools/train.py $(ARGS)

test: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/python -m pytest -n 3 -m "not slow and not release" --durations 10 $(ARGS)

check: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

coverage:
	$(MAKE) test ARGS='--cov --cov-report=term $(THOROUGH) $(ARGS)'

# One of each kind of slow test.
test-slow: $(VENV)/.installed-slow
	$(RUN)/python -m pytest -n 3 -m "slow and not release" --durations 20 $(ARGS)

# With a part, the slow tests of its files alone: `make check coverage test-servers` has the rest.
test-release: THOROUGH = --thorough
test-release: $(if $(PART),,check coverage test-servers) $(VENV)/.installed-slow
	$(RUN)/python -m pytest -n 3 -m "slow or release" --durations 20 $(THOROUGH) \
		$(if $(PART),--part $(PART)) $(ARGS)
	$(if $(PART),,$(MAKE) upstream)

# A defect fails an assertion, or crashes (SIGABRT, SIGBUS, SIGFPE, SIGSEGV) or hangs (SIGALRM).
upstream: $(VENV)/.installed-test
	@for script in $(or $(ARGS),tools/upstream/*.py); do \
		state=$$($(RUN)/python $$script 2>&1 >/dev/null); code=$$?; \
		last=$$(echo "$$state" | grep . | tail -n 1); \
		case "$$code $$last" in \
			"0 "*) state=fixed;; \
			*" AssertionError"* | 13[45689]" "* | 142" "*) state='still there';; \
			*) state="cannot tell: exit code $$code, $$last";; \
		esac; \
		echo "$$script: $$state"; done

test-servers:
	$(MAKE) $(VENV)-servers/.installed-test VENV=$(VENV)-servers PYTHON='$(PYTHON_OF_SERVERS)' \
		PINS='$(PINS_OF_SERVERS)'
	$(VENV)-servers/bin/python -m pytest -m "slow or not slow" tests/test_parameter_servers.py

docs: $(VENV)/.installed
	$(RUN)/pip install --quiet -e '.[cpu,docs,pictures]' $(foreach pin,$(PINS),'$(pin)')
	$(SITE) docs/en build/site/en
	$(SITE) -D language=zh_CN docs/zh build/site/zh
	cp docs/index.html build/site/
	@echo "the site: build/site/index.html"

# All that is built is committed and in the changelog. The tables of measurements are listed, the
# oldest first.
release: $(VENV)/.installed-test
	test -z "$$(git status --porcelain)" || (echo "commit or remove: $$(git status --porcelain)"; false)
	version=$$($(RUN)/python -c "import paddle_mnist; print(paddle_mnist.__version__)") && \
		grep -E "^## \[$$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$$" CHANGELOG.md
	grep -oE 'commit [0-9a-f]+, date [0-9-]+' docs/en/*.md | sort -k4
	rm -rf dist build/release && mkdir -p build/release
	git clone --quiet . build/release/tree
	$(RUN)/python -m build --outdir dist build/release/tree
	for file in $(CURDIR)/dist/*; do \
		cd build/release && rm -rf venv run && $(PYTHON) -m venv venv && \
		venv/bin/pip install --quiet "$$file[cpu,pictures]" && \
		venv/bin/paddle-mnist train --recipe digits --output run && \
		venv/bin/paddle-mnist infer tree/tests/pictures/7-07.jpg | grep -E "^ +7 " && cd ../.. || exit 1; \
	done
	@echo "$$(ls dist): each installs, trains and reads a picture; to tag: git tag --annotate vVERSION"

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg | $(VENV)/bin/pip
	@echo "installing into $(VENV), which takes some minutes and 1.8 GB of disk the first time"
	$(RUN)/pip install --quiet -e '.[cpu,pictures]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

$(VENV)/.installed-test: setup.cfg $(VENV)/.installed
	$(RUN)/pip install --quiet -e '.[cpu,mirror,safetensors,test]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

$(VENV)/.installed-slow: setup.cfg $(VENV)/.installed-test
	$(RUN)/pip install --quiet -e '.[cpu,test,browser,docs,elastic,mirror,notebook,onnx,safetensors,web]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-servers
