// Command volumes provisions persistent volumes as plain folders of this node.
//
// The containers of a pod run under any user id, so each folder is open to all of them; who may mount it is decided by
// the claim. Volumes are of type "local", not "hostPath": only those get a pod's fsGroup applied.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

type folders struct{ root, node string }

func (f folders) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if o.PVC.Spec.VolumeMode != nil && *o.PVC.Spec.VolumeMode == v1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, fmt.Errorf("volumeMode Block is not offered, only Filesystem")
	}
	path := filepath.Join(f.root, o.PVName)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	if err := os.Chmod(path, 0o777); err != nil { // the umask has narrowed it
		return nil, controller.ProvisioningFinished, err
	}
	here := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{f.node}}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			PersistentVolumeSource:        v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{here}}}}},
		},
	}, controller.ProvisioningFinished, nil
}

func (f folders) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	path := filepath.Join(f.root, volume.Name)
	if volume.Spec.Local == nil || volume.Spec.Local.Path != path {
		return &controller.IgnoredError{Reason: "not a folder below " + f.root}
	}
	return os.RemoveAll(path)
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	root := flag.String("root", "", "folder that holds the volumes")
	node := flag.String("node", "", "the node the volumes are on")
	name := flag.String("provisioner", "", "the name that storage classes call it by")
	flag.Parse()

	ctx := context.Background()
	log := klog.FromContext(ctx)
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Error(err, "cannot read the kubeconfig", "path", *kubeconfig)
		os.Exit(1)
	}
	client := kubernetes.NewForConfigOrDie(config)
	controller.NewProvisionController(ctx, client, *name, folders{root: *root, node: *node},
		controller.LeaderElection(false)).Run(ctx)
}
