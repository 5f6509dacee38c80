package testserver

import (
	"fmt"
	"slices"
)

// A Name names a server as docker-compose.yml names its service.
type Name string

const (
	// The base group: always running while the tests run.
	Redis     Name = "redis" // 7
	Etcd      Name = "etcd"
	ZooKeeper Name = "zookeeper" // 3.8
	Consul    Name = "consul"    // session_ttl_min = 1s

	Redis8      Name = "redis8"
	Valkey      Name = "valkey"
	RedisClock  Name = "redis-clock" // its wall clock can be moved: see docker-compose.yml
	ZooKeeper39 Name = "zookeeper39"

	RedisTLS     Name = "redis-tls"  // user app, password secret; client certificates optional
	RedisMTLS    Name = "redis-mtls" // client certificates required
	RedisUnix    Name = "redis-unix" // Addr is the path of a unix socket
	EtcdTLS      Name = "etcd-tls"
	EtcdMTLS     Name = "etcd-mtls"
	ZooKeeperTLS Name = "zookeeper-tls" // client certificates optional
	ConsulTLS    Name = "consul-tls"
	ConsulMTLS   Name = "consul-mtls"

	EtcdAuth      Name = "etcd-auth"      // tokens live 3 s; authentication is off until a test turns it on
	ConsulACL     Name = "consul-acl"     // default deny; Password is a token that may do everything
	ConsulDefault Name = "consul-default" // sessions of less than 10 s are refused

	Postgres Name = "postgres" // Username, Password, and a database called locker
	MariaDB  Name = "mariadb"
)

// A GroupName names servers that are started, used and stopped together.
type GroupName string

const (
	Redlock          GroupName = "redlock"           // five independent Redis masters
	Sentinel         GroupName = "sentinel"          // redis-primary, redis-replica, sentinel1..3; the master's name is "main"
	RedisCluster     GroupName = "cluster"           // three masters with all slots
	EtcdCluster      GroupName = "etcd-cluster"      // three members
	ZooKeeperCluster GroupName = "zookeeper-cluster" // three members
	ConsulCluster    GroupName = "consul-cluster"    // three servers
)

// groups are the members of each group, in the order in which Group returns them.
var groups = map[GroupName][]Name{
	Redlock:          {"redlock1", "redlock2", "redlock3", "redlock4", "redlock5"},
	Sentinel:         {"redis-primary", "redis-replica", "sentinel1", "sentinel2", "sentinel3"},
	RedisCluster:     {"redis-cluster1", "redis-cluster2", "redis-cluster3"},
	EtcdCluster:      {"etcd1", "etcd2", "etcd3"},
	ZooKeeperCluster: {"zookeeper1", "zookeeper2", "zookeeper3"},
	ConsulCluster:    {"consul1", "consul2", "consul3"},
}

// namespaces are the services whose network namespace a group's members live in.
var namespaces = map[GroupName]Name{Sentinel: "redis-sentinel-net", RedisCluster: "redis-cluster-net"}

// consulToken is the management token of consul-acl.
const consulToken = "00000000-0000-4000-8000-00000000cafe"

// transport is what lies between a client and a server.
type transport int

const (
	plain transport = iota
	unixSocket
	serverTLS // the server shows a certificate
	mutualTLS // and the client must show one
)

// spec is what is known of a server.
type spec struct {
	backend   string // what LOCKER_TEST_REQUIRE calls it
	image     string // in package images
	port      int    // on 127.0.0.1
	inside    int    // the same port inside the container
	transport transport
	probe     prober
	username  string
	password  string
	profile   string    // in the compose file; empty: the base group
	group     GroupName // the same for a member of a group; else empty
	peers     []string  // ports, as "tcp/2380", over which the members of a group talk to each other
	bus       int       // Redis Cluster's own port, which is cut off together with the other one

	// How a private server is started: the compose file's command and environment once more, which a
	// test compares; {port} is the one on the host. Empty: there are no private ones.
	command []string
	env     []string
}

var (
	redisCommand  = []string{"redis-server", "--protected-mode", "no", "--save", "", "--appendonly", "no"}
	etcdCommand   = []string{"etcd", "--name=etcd", "--data-dir=/tmp/etcd", "--heartbeat-interval=50", "--election-timeout=500", "--unsafe-no-fsync"}
	consulCommand = []string{"consul", "agent", "-dev", "-client=0.0.0.0", "-hcl=disable_update_check = true"}
	consulFast    = append(slices.Clip(consulCommand), `-hcl=session_ttl_min = "1s"`)
	redisOverTLS  = []string{"redis-server", "--protected-mode", "no", "--save", "", "--port", "0", "--tls-port", "6379",
		"--tls-cert-file", "/tls/server.crt", "--tls-key-file", "/tls/server.key", "--tls-ca-cert-file", "/tls/ca.crt"}
	zookeeperEnv = []string{
		"ZOO_TICK_TIME=200", "ZOO_INIT_LIMIT=50", "ZOO_SYNC_LIMIT=10", "ZOO_MAX_CLIENT_CNXNS=0",
		"ZOO_ADMINSERVER_ENABLED=false", "ZOO_4LW_COMMANDS_WHITELIST=*",
		"ZK_SERVER_HEAP=128", "SERVER_JVMFLAGS=-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
	}
)

var zookeeperPlain = with(zookeeperEnv, "ZOO_CFG_EXTRA=maxSessionTimeout=60000 forceSync=no quorumListenOnAllIPs=true")

func with(command []string, more ...string) []string {
	return append(slices.Clip(command), more...)
}

// Profile returns the servers of a profile of the compose file, those of the base group for "" and all
// there are for "all". Of a group that includes the service that lends its network namespace.
func Profile(profile string) []Name {
	var names []Name
	for name, sp := range servers {
		if sp.profile == profile || profile == "all" {
			names = append(names, name)
		}
	}
	for group, name := range namespaces {
		if string(group) == profile || profile == "all" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// servers is the catalogue.
var servers = map[Name]*spec{
	Redis:  {backend: "redis", image: "redis", port: 16379, inside: 6379, probe: probeRedis, command: redisCommand},
	Redis8: {profile: "versions", backend: "redis", image: "redis8", port: 16376, inside: 6379, probe: probeRedis, command: redisCommand},
	Valkey: {profile: "valkey", backend: "redis", image: "valkey", port: 16378, inside: 6379, probe: probeRedis, command: []string{"valkey-server", "--protected-mode", "no", "--save", ""}},
	RedisClock: {profile: "clock", backend: "redis", image: "redis", port: 16377, inside: 6379, probe: probeRedis,
		command: []string{"redis-server", "--protected-mode", "no", "--save", ""},
		env: []string{"LD_PRELOAD=/usr/local/lib/faketime.so:/usr/local/lib/malloc.so", "FAKETIME_TIMESTAMP_FILE=/tmp/faketime",
			"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}},
	RedisTLS: {profile: "tls", backend: "redis", image: "redis", port: 16390, inside: 6379, probe: probeRedis, transport: serverTLS, username: "app", password: "secret",
		command: with(redisOverTLS, "--tls-auth-clients", "optional", "--user", "default", "off", "--user", "app", "on", ">secret", "~*", "&*", "+@all")},
	RedisMTLS: {profile: "tls", backend: "redis", image: "redis", port: 16391, inside: 6379, probe: probeRedis, transport: mutualTLS, command: with(redisOverTLS, "--tls-auth-clients", "yes")},
	RedisUnix: {profile: "tls", backend: "redis", image: "redis", probe: probeRedis, transport: unixSocket,
		command: []string{"redis-server", "--save", "", "--port", "0", "--unixsocket", "/sockets/redis.sock", "--unixsocketperm", "777"}},

	Etcd: {backend: "etcd", image: "etcd", port: 16679, inside: 2379, probe: probeEtcd,
		command: with(etcdCommand, "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://127.0.0.1:{port}")},
	EtcdAuth: {profile: "acl", backend: "etcd", image: "etcd", port: 16680, inside: 2379, probe: probeEtcd,
		command: with(etcdCommand, "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://127.0.0.1:{port}", "--auth-token=simple", "--auth-token-ttl=3")},
	EtcdTLS: {profile: "tls", backend: "etcd", image: "etcd", port: 16690, inside: 2379, probe: probeEtcd, transport: serverTLS,
		command: with(etcdCommand, "--listen-client-urls=https://0.0.0.0:2379", "--advertise-client-urls=https://127.0.0.1:{port}", "--cert-file=/tls/server.crt", "--key-file=/tls/server.key")},
	EtcdMTLS: {profile: "tls", backend: "etcd", image: "etcd", port: 16691, inside: 2379, probe: probeEtcd, transport: mutualTLS,
		command: with(etcdCommand, "--listen-client-urls=https://0.0.0.0:2379", "--advertise-client-urls=https://127.0.0.1:{port}", "--cert-file=/tls/server.crt", "--key-file=/tls/server.key",
			"--trusted-ca-file=/tls/ca.crt", "--client-cert-auth")},

	ZooKeeper:   {backend: "zookeeper", image: "zookeeper", port: 16181, inside: 2181, probe: probeZooKeeper, command: []string{"zkServer.sh", "start-foreground"}, env: zookeeperPlain},
	ZooKeeper39: {profile: "versions", backend: "zookeeper", image: "zookeeper39", port: 16182, inside: 2181, probe: probeZooKeeper, command: []string{"zkServer.sh", "start-foreground"}, env: zookeeperPlain},
	ZooKeeperTLS: {profile: "tls", backend: "zookeeper", image: "zookeeper", port: 16187, inside: 2281, probe: probeZooKeeper, transport: serverTLS,
		command: []string{"zkServer.sh", "start-foreground"},
		env: with(zookeeperEnv, "ZOO_CFG_EXTRA=maxSessionTimeout=60000 forceSync=no secureClientPort=2281 "+
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory ssl.hostnameVerification=false "+
			"ssl.keyStore.location=/tls/server.pem ssl.keyStore.type=PEM "+
			"ssl.trustStore.location=/tls/ca.crt ssl.trustStore.type=PEM ssl.clientAuth=want")},

	Consul:        {backend: "consul", image: "consul", port: 16850, inside: 8500, probe: probeConsul, command: consulFast},
	ConsulDefault: {profile: "consul-cluster", backend: "consul", image: "consul", port: 16851, inside: 8500, probe: probeConsul, command: consulCommand},
	ConsulACL: {profile: "acl", backend: "consul", image: "consul", port: 16852, inside: 8500, probe: probeConsul, password: consulToken,
		command: with(consulFast, `-hcl=acl { enabled = true, default_policy = "deny", down_policy = "extend-cache", tokens { initial_management = "`+consulToken+`", agent = "`+consulToken+`" } }`)},
	ConsulTLS: {profile: "tls", backend: "consul", image: "consul", port: 16856, inside: 8501, probe: probeConsul, transport: serverTLS,
		command: with(consulFast, "-hcl=ports { https = 8501 }", `-hcl=tls { https { ca_file = "/tls/ca.crt", cert_file = "/tls/server.crt", key_file = "/tls/server.key", verify_incoming = false } }`)},
	ConsulMTLS: {profile: "tls", backend: "consul", image: "consul", port: 16857, inside: 8501, probe: probeConsul, transport: mutualTLS,
		command: with(consulFast, "-hcl=ports { https = 8501 }", `-hcl=tls { https { ca_file = "/tls/ca.crt", cert_file = "/tls/server.crt", key_file = "/tls/server.key", verify_incoming = true } }`)},

	Postgres: {profile: "sql", backend: "postgres", image: "postgres", port: 16432, inside: 5432, probe: probePostgres, username: "locker", password: "secret",
		command: []string{"postgres", "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"},
		env:     []string{"POSTGRES_USER=locker", "POSTGRES_PASSWORD=secret", "POSTGRES_DB=locker"}},
	MariaDB: {profile: "sql", backend: "mariadb", image: "mariadb", port: 16306, inside: 3306, probe: probeMariaDB, username: "locker", password: "secret",
		command: []string{"mariadbd", "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"},
		env:     []string{"MARIADB_ROOT_PASSWORD=secret", "MARIADB_DATABASE=locker", "MARIADB_USER=locker", "MARIADB_PASSWORD=secret"}},

	"redis-primary": {backend: "redis", image: "redis", port: 16401, inside: 16401, probe: probeRedis, profile: string(Sentinel), group: Sentinel},
	"redis-replica": {backend: "redis", image: "redis", port: 16402, inside: 16402, probe: probeRedis, profile: string(Sentinel), group: Sentinel},
}

// The members of groups differ in their numbers only.
func init() {
	for i := range 5 {
		servers[Name(fmt.Sprintf("redlock%d", i+1))] = &spec{backend: "redlock", image: "redis", port: 16381 + i, inside: 6379, probe: probeRedis, profile: string(Redlock), group: Redlock}
	}
	for i := range 3 {
		n := i + 1
		servers[Name(fmt.Sprintf("sentinel%d", n))] = &spec{backend: "redis", image: "redis", port: 16411 + i, inside: 16411 + i, probe: probeSentinel, profile: string(Sentinel), group: Sentinel}
		servers[Name(fmt.Sprintf("redis-cluster%d", n))] = &spec{backend: "redis", image: "redis", port: 16501 + i, inside: 16501 + i, bus: 26501 + i, probe: probeRedisCluster, profile: string(RedisCluster), group: RedisCluster}
		servers[Name(fmt.Sprintf("etcd%d", n))] = &spec{backend: "etcd", image: "etcd", port: 16681 + i, inside: 2379, probe: probeEtcd, profile: string(EtcdCluster), group: EtcdCluster, peers: []string{"tcp/2380"}}
		servers[Name(fmt.Sprintf("zookeeper%d", n))] = &spec{backend: "zookeeper", image: "zookeeper", port: 16191 + i, inside: 2181, probe: probeZooKeeper, profile: string(ZooKeeperCluster), group: ZooKeeperCluster, peers: []string{"tcp/2888", "tcp/3888"}}
		servers[Name(fmt.Sprintf("consul%d", n))] = &spec{backend: "consul", image: "consul", port: 16861 + i, inside: 8500, probe: probeConsul, profile: string(ConsulCluster), group: ConsulCluster, peers: []string{"tcp/8300", "tcp/8301", "udp/8301"}}
	}
}
