// Command kube-router enforces network policies: kube-router's controller for them, without its router, its service
// proxy and its load balancer, which this cluster does not use and which would take minutes to compile.
package main

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func run() error {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	config.MetricsEnabled = false

	access, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot read the kubeconfig %s: %w", config.Kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}

	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(stop)
	for kind, synced := range factory.WaitForCacheSync(stop) {
		if !synced {
			return fmt.Errorf("could not list %v", kind)
		}
	}

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	_, podsErr := pods.AddEventHandler(controller.PodEventHandler)
	_, namespacesErr := namespaces.AddEventHandler(controller.NamespaceEventHandler)
	_, policiesErr := policies.AddEventHandler(controller.NetworkPolicyEventHandler)
	if err := errors.Join(podsErr, namespacesErr, policiesErr); err != nil {
		return err
	}

	// What it says of its health goes nowhere: the cluster looks at the chains that it keeps.
	health := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range health {
		}
	}()
	var group sync.WaitGroup
	group.Add(1)
	controller.Run(health, stop, &group)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kube-router:", err)
		os.Exit(1)
	}
}
