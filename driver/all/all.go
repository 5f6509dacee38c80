// Package all imports every driver of this module, so that every scheme is known. It is for programs whose users choose
// the backend, such as the command line; others import the drivers they need.
package all

import (
	_ "github.com/leasekit/locker/driver/consul"
	_ "github.com/leasekit/locker/driver/etcd"
	_ "github.com/leasekit/locker/driver/file"
	_ "github.com/leasekit/locker/driver/memory"
	_ "github.com/leasekit/locker/driver/migrate"
	_ "github.com/leasekit/locker/driver/redis"
	_ "github.com/leasekit/locker/driver/redlock"
	_ "github.com/leasekit/locker/driver/zookeeper"
)
