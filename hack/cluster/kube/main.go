// Command kube is a whole Kubernetes in one file: each component is chosen by the first argument.
//
// Components are the unchanged upstream ones. They live in one binary because they share nearly all of their
// code: nine separate builds would take several times the time and the disk.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// run wraps a component that is a cobra command; it is built only when chosen, for building registers global flags.
func run(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

var components = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": run(func() *cobra.Command { return controllers.NewControllerManagerCommand() }),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              run(func() *cobra.Command { return proxy.NewProxyCommand() }),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }),
	"kubeadm":                 runKubeadm,
}

func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		return 1
	}
	return 0
}

func names() []string {
	all := make([]string, 0, len(components))
	for name := range components {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "usage: kube COMPONENT [FLAG ...]; components: %v\n", names())
		os.Exit(2)
	}
	os.Args = os.Args[1:] // each component parses the arguments as if it had been started by its own name
	os.Exit(components[os.Args[0]]())
}
