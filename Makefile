# What these do is in internal/testserver/cmd. testservers/README.md has the variables.
#
#   make images                     have the images of all test servers: pulled, or built (Linux, root)
#   make up [GROUPS="tls redlock"]  start the base group and profiles of docker-compose.yml
#   make down                       stop and remove all of them
#   make test [ARGS="-run X ./…"]   start what is missing, run the tests, stop it again; KEEP=1 leaves it running
#   make check                      gofmt, go vet and staticcheck

GO ?= go
SERVERS = $(GO) run ./internal/testserver/cmd

.PHONY: images up down test check

images:
	@$(SERVERS) images $(IMAGES)

up:
	@$(SERVERS) up $(GROUPS)

down:
	@$(SERVERS) down

test:
	@$(SERVERS) test $(ARGS)

check:
	@.ci/check
